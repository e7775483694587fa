// load_rows() on files as people have them: encodings, delimiters, headers, shapes of JSON and CoNLL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iconv.h>

#include "mezzo/text/data/dataset.h"
#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using Strings = std::vector<std::string>;
using namespace std::string_literals;
using namespace std::string_view_literals;

LoadRowsOptions labels_of(LabelKind kind) { return LoadRowsOptions().label_kind(kind); }
LoadRowsOptions texts_alone() { return labels_of(LabelKind::kNone); }
LoadRowsOptions with(const ColumnNames& columns) { return LoadRowsOptions().columns(columns); }

/// Of a text that both encodings have.
std::string encoded(std::string text, const char* encoding) {
  iconv_t converter = iconv_open(encoding, "UTF-8");
  EXPECT_NE(converter, reinterpret_cast<iconv_t>(-1)) << encoding;
  std::string bytes(4 * text.size() + 8, '\0');
  char *in = text.data(), *out = bytes.data();
  size_t in_left = text.size(), out_left = bytes.size();
  EXPECT_NE(iconv(converter, &in, &in_left, &out, &out_left), static_cast<size_t>(-1)) << encoding;
  iconv_close(converter);
  bytes.resize(bytes.size() - out_left);
  return bytes;
}

class DataFilesTest : public testing::Test {
 protected:
  LabeledRows load(std::string_view file, std::string_view bytes, const LoadRowsOptions& options = {}) {
    auto rows = load_rows(folder_.write(file, bytes), options);
    for (std::string& note : rows.notes) note.erase(0, note.rfind('/') + 1);
    return rows;
  }
  std::string error(std::string_view file, std::string_view bytes, const LoadRowsOptions& options = {}) {
    return value_error([&] { load(file, bytes, options); }, folder_);
  }

  const ScratchFolder folder_;
};

constexpr const char* kChinese = "text,label\n这部电影很好看，演员也好,正面\n太差了，不推荐给朋友,负面\n";
constexpr const char* kGerman =
    "text;label\nDas Frühstück war schön, das Zimmer groß.;gut\nDie Tür war müde und die Straße laut;schlecht\n";

TEST_F(DataFilesTest, DetectsEncodings) {
  struct Case {
    const char *text, *encoding, *note;
  };
  for (const auto& [text, encoding, note] :
       {Case{kChinese, "GB18030", "read as GB18030 (detected from 35 different bytes outside of ASCII)"},
        Case{kGerman, "ISO-8859-1", "read as WINDOWS-1252 (a guess from 3 different bytes outside of ASCII)"},
        Case{"text,label\n這部電影很好看演員也好,正面\n太差了不推薦給朋友,負面\n", "BIG5", "read as BIG5 (detected"},
        Case{"text,label\nこの映画はとても良いです,ポジ\nつまらない作品でした,ネガ\n", "SHIFT_JIS",
             "read as SHIFT_JIS (detected"},
        Case{"text,label\n이 영화는 정말 재미있다,긍정\n너무 지루하다,부정\n", "EUC-KR", "read as UHC (detected"},
        Case{"text,label\nПривет мир как дела сегодня,а\nОчень плохой фильм и скучно,б\n", "WINDOWS-1251",
             "read as WINDOWS-1251 (detected"},
        Case{"text,label\nВ среду передали прогноз на выходные дни,а\nРежиссёр представил премьеру фильма,б\n", "CP866",
             "read as IBM866 (detected"}}) {
    const auto expected = load("a.csv", text);
    const auto rows = load("a.csv", encoded(text, encoding));
    EXPECT_EQ(rows.texts, expected.texts) << encoding;
    EXPECT_EQ(rows.labels, expected.labels) << encoding;
    ASSERT_FALSE(rows.notes.empty());
    EXPECT_THAT(rows.notes.back(), StartsWith("a.csv: " + std::string(note)));
    EXPECT_THAT(rows.notes.back(), testing::EndsWith("; --encoding NAME changes it"));
  }
  EXPECT_THAT(load("a.csv", kChinese).notes, IsEmpty());
}

TEST_F(DataFilesTest, TakesASingleAccentOrApostropheForWindows1252) {
  for (const auto& [bytes, text] : {std::pair{"it\x92s good", "it’s good"},
                                    {"gro\xDF"
                                     "artig",
                                     "großartig"},
                                    {"el ni\xF1o", "el niño"}}) {
    std::string file = "text,label\n";
    for (int row = 0; row < 1200; ++row) file += bytes + std::string(row % 2 == 0 ? ",1\n" : ",0\n");
    const auto rows = load("a.csv", file);
    EXPECT_EQ(rows.texts[0], text);
    EXPECT_THAT(rows.notes, ElementsAre("a.csv: read as WINDOWS-1252 (a guess from 1 byte outside of ASCII); "
                                        "--encoding NAME changes it"));
  }
}

TEST_F(DataFilesTest, RefusesUtf8MixedWithAnotherEncoding) {
  constexpr const char* kMixed =
      " are not valid UTF-8. The file is UTF-8 mixed with another encoding, or damaged. Save it as UTF-8, "
      "or pass --encoding NAME.";
  std::string half = "text,label\n", damaged = half;
  for (int row = 0; row < 400; ++row)
    half += row % 2 == 0 ? "schön über café,1\n"
                         : "sch\xF6n \xFC"
                           "ber caf\xE9,0\n";
  for (int row = 0; row < 60'000; ++row) damaged += row % 2 == 0 ? "café \xFF\xFE,1\n" : "café \xFF\xFE,0\n";
  EXPECT_THAT(error("a.csv", half), testing::EndsWith(kMixed));
  EXPECT_THAT(error("a.csv", damaged), testing::EndsWith(kMixed));
}

TEST_F(DataFilesTest, DetectsUtf16AndUtf32) {
  const auto expected = load("a.csv", kChinese).texts;
  for (const char* encoding : {"UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"}) {
    const auto marked = load("a.csv", encoded("\uFEFF" + std::string(kChinese), encoding));
    EXPECT_EQ(marked.texts, expected) << encoding;
    EXPECT_THAT(marked.notes, ElementsAre("a.csv: read as " + std::string(encoding) +
                                          " (by its byte order mark); --encoding NAME changes it"));
  }
  for (const char* encoding : {"UTF-16LE", "UTF-16BE"}) {
    const auto rows = load("a.csv", encoded(kChinese, encoding));
    EXPECT_EQ(rows.texts, expected) << encoding;
    EXPECT_THAT(rows.notes, ElementsAre("a.csv: read as " + std::string(encoding) +
                                        " (detected by its zero bytes); --encoding NAME changes it"));
  }
  EXPECT_EQ(error("a.csv", encoded(kChinese, "UTF-32LE")),
            "a.csv: the file is not text: it begins with zero bytes. If it is UTF-32, pass --encoding UTF-32.");
  EXPECT_EQ(load("a.csv", encoded(kChinese, "UTF-32LE"), with({.encoding = "UTF-32LE"})).texts, expected);
  // A zero byte of UTF-8 is a character.
  EXPECT_EQ(load("a.csv", "text,label\na\0b,1\n"sv).texts, Strings{"a\0b"s});
  EXPECT_EQ(load("a.csv", "text,label\na\0\0b\0,1\nschön,0\n"sv).texts, (Strings{"a\0\0b\0"s, "schön"}));
}

TEST_F(DataFilesTest, ReadsTheEncodingThatIsGiven) {
  const auto expected = load("a.csv", kChinese).texts;
  for (const char* name : {"GB18030", "gbk", "gb2312", "cp936"}) {
    const auto rows = load("a.csv", encoded(kChinese, "GB18030"), with({.encoding = name}));
    EXPECT_EQ(rows.texts, expected) << name;
    EXPECT_THAT(rows.notes, IsEmpty());
  }
  for (const char* name : {"UTF-8", "utf8", "utf-8-sig"}) {
    EXPECT_EQ(load("a.csv", "\xEF\xBB\xBF" + std::string(kChinese), with({.encoding = name})).texts, expected) << name;
  }
  const std::string utf16 = encoded("\uFEFF" + std::string(kChinese), "UTF-16LE");
  for (const char* name : {"UTF-16LE", "utf-16", "utf_16_le"}) {
    EXPECT_EQ(load("a.csv", utf16, with({.encoding = name})).texts, expected) << name;
  }
  EXPECT_EQ(load("a.csv", "text,label\ncaf\xe9,1\n", with({.encoding = "latin-1"})).texts, Strings{"café"});
  EXPECT_EQ(load("a.csv", "text,label\n\xa4\xa2,1\n", with({.encoding = "euc_jp"})).texts, Strings{"あ"});
  EXPECT_EQ(error("a.csv", kChinese, with({.encoding = "GB1803"})),
            "a.csv: iconv does not know the encoding 'GB1803'. Did you mean 'GB18030'?");
  EXPECT_EQ(error("a.csv", kChinese, with({.encoding = "klingon"})),
            "a.csv: iconv does not know the encoding 'KLINGON'. `iconv -l` lists all.");
}

TEST_F(DataFilesTest, ReplacesFewInvalidBytesAndRefusesMany) {
  std::string many = "text,label\n";
  for (int i = 0; i < 300; ++i) many += "schön und grün,1\n";
  const auto rows = load("a.csv", many + "a\xff z,0\ncut \xe4\xb8,0\n");
  EXPECT_EQ(rows.texts[300], "a\uFFFD z");
  EXPECT_EQ(rows.texts[301], "cut \uFFFD");
  EXPECT_THAT(rows.notes, ElementsAre("a.csv: 3 bytes that are not valid UTF-8 became U+FFFD"));
  const std::string gb = encoded(kChinese, "GB18030");
  EXPECT_EQ(error("a.csv", gb, with({.encoding = "UTF-8"})),
            "a.csv: 33 of 67 bytes (49.3 %) are not valid UTF-8. The file is likely GB18030: pass --encoding GB18030.");
  EXPECT_THAT(error("a.jsonl", encoded(R"(["这部电影很好看，演员也好", 1])", "GB18030"), with({.encoding = "UTF-8"})),
              HasSubstr("The file is likely GB18030"));
  EXPECT_THAT(error("a.csv", kChinese, with({.encoding = "SHIFT_JIS"})), HasSubstr("are not valid SHIFT_JIS."));
}

TEST_F(DataFilesTest, ConvertsAcrossTheEndsOfBlocks) {
  for (const char* encoding : {"GB18030", "UTF-16", "UTF-8", "SHIFT_JIS"}) {
    for (size_t before = (64 << 10) - 9; before < (64 << 10) + 1; ++before) {
      const std::string text = std::string(before - 6, 'x') + "中文の字" + std::string(70'000, 'y') + "中";
      const auto rows =
          load("a.txt", encoded(text + "\nend 文\n", encoding), texts_alone().columns({.encoding = encoding}));
      ASSERT_TRUE(rows.texts == (Strings{text, "end 文"})) << encoding << " " << before;
    }
  }
}

TEST_F(DataFilesTest, ReplacesInvalidBytesAtTheEndsOfBlocks) {
  for (size_t before = (64 << 10) - 9; before < (64 << 10) + 1; ++before) {
    const std::string text(before, 'x'), more(70'000, 'y');
    const auto utf8 = texts_alone().columns({.encoding = "UTF-8"});
    const auto rows = load("a.txt", text + "\xFF" + more + "\n", utf8);
    ASSERT_TRUE(rows.texts[0] == text + "\uFFFD" + more) << before;
  }
}

TEST_F(DataFilesTest, ReadsOtherDelimiters) {
  const auto rows = load("a.csv", kGerman);
  EXPECT_THAT(rows.texts,
              ElementsAre("Das Frühstück war schön, das Zimmer groß.", "Die Tür war müde und die Straße laut"));
  EXPECT_THAT(rows.notes, ElementsAre("a.csv: columns are separated by ';' (detected); --delimiter changes it"));
  EXPECT_THAT(load("a.csv", "text\tlabel\ngood, yes\tpos\n").texts, ElementsAre("good, yes"));
  EXPECT_THAT(load("a.tsv", "text,label\ngood,pos\n").texts, ElementsAre("good"));
  EXPECT_THAT(load("a.csv", "label|text\npos|good, yes; no\n").texts, ElementsAre("good, yes; no"));
  EXPECT_THAT(load("a.csv", "\"text\";\"label\";\"a,b\"\n\"good \"\"film\"\"\";\"pos\";1\n").texts,
              ElementsAre("good \"film\""));
  // By the rows, if no header has the columns.
  const auto named = with({.text = "Text", .label = "Stars"});
  EXPECT_THAT(load("a.csv", "Text;Stars\n1,5 good;5\n2,5 bad, bad;1\n", named).texts,
              ElementsAre("1,5 good", "2,5 bad, bad"));
  EXPECT_THAT(load("a.csv", "good, yes;5\nbad;1\n", with({.columns = "text,label"})).texts,
              ElementsAre("good, yes", "bad"));
  EXPECT_THAT(load("a.csv", "a;b\nx;y\n", texts_alone().columns({.text = "a;b"})).texts, ElementsAre("x;y"));
  EXPECT_THAT(load("a.csv", "text,label,\"a;b\tc\"\nx,0,1\n").texts, ElementsAre("x"));
  EXPECT_THAT(load("a.csv", "id,\"Was it good; or bad?\n(one answer)\",text,label\n1,x,goal,0\n").texts,
              ElementsAre("goal"));
  EXPECT_THAT(load("a.csv", "id,\"" + std::string(100'000, ';') + "\",text,label\n1,x,goal,0\n").texts,
              ElementsAre("goal"));
  EXPECT_EQ(error("a.csv", "text;label\ngood;pos\nbad; or not;neg\n"),
            "a.csv:3: row 2: 3 fields where the header names 2. Quote a text that holds a ';', or pass the right "
            "--delimiter.");
  EXPECT_EQ(
      error("a.csv", "\"x\"y,label\n"),
      "a.csv:1: text after the closing quote of a field; inside quotes, write a quote twice, or pass --unquoted if "
      "quotes are ordinary characters.");
}

TEST_F(DataFilesTest, ReadsTheDelimiterThatIsGiven) {
  EXPECT_THAT(load("a.csv", "text#label\na;b,c#1\n", with({.delimiter = "#"})).texts, ElementsAre("a;b,c"));
  for (const char* name : {"tab", "\t", "\\t"}) {
    EXPECT_THAT(load("a.txt", "text\tlabel\ngood\t1\n", with({.delimiter = name})).texts, ElementsAre("good"));
    EXPECT_THAT(load("a.data", "text\tlabel\ngood\t1\n", with({.delimiter = name})).texts, ElementsAre("good"));
  }
  EXPECT_EQ(error("a.csv", "text;label\n", with({.delimiter = ","})),
            "a.csv:1: no columns 'text' and 'label' among 'text;label'. The columns look separated by ';'. Leave out "
            "--delimiter.");
  EXPECT_EQ(error("a.csv", "id,text\n1,good\n", texts_alone().columns({.delimiter = ";"})),
            "a.csv:1: no column 'text' among 'id,text'. The columns look separated by ','. Leave out --delimiter.");
  EXPECT_THAT(load("a.csv", "id,text\ngood\n", texts_alone().columns({.text = "id,text", .delimiter = ";"})).texts,
              ElementsAre("good"));
  for (const char* bad : {"", ",,", "\"", "é"}) {
    EXPECT_THAT(error("a.csv", "text", with({.delimiter = bad})), StartsWith("--delimiter must be auto, tab,"));
  }
  EXPECT_EQ(error("a.jsonl", "[]", with({.delimiter = ","})),
            "a.jsonl: --delimiter, --columns and --no-header are for tables, but .jsonl is not a table.");
  EXPECT_EQ(error("a.parquet", "PAR1", with({.encoding = "GB18030"})),
            "a.parquet: --encoding is for text files, but .parquet is not one.");
}

TEST_F(DataFilesTest, ReadsATxtWithAHeaderAsATable) {
  const auto rows = load("a.txt", encoded("\uFEFFtext\tlabel\r\ngood, yes\tpos\r\n", "UTF-16LE"));
  EXPECT_THAT(rows.texts, ElementsAre("good, yes"));
  EXPECT_EQ(rows.notes.front(), "a.txt: read as a table with tabs");
  EXPECT_THAT(load("a.txt", "text\nlabel\n", texts_alone()).texts, ElementsAre("text", "label"));
  EXPECT_THAT(load("a.txt", "my\ttext\nlabel\n", texts_alone()).texts, ElementsAre("my\ttext", "label"));
}

TEST_F(DataFilesTest, ReadsTheDelimiterOfExcel) {
  for (const char* first : {"sep=;\n", "sep=;\r\n", "\"sep=;\"\r\n"}) {
    const auto rows = load("a.csv", first + std::string("text;label\ngood, yes;pos\n"));
    EXPECT_THAT(rows.texts, ElementsAre("good, yes"));
    EXPECT_THAT(rows.places.lines, ElementsAre(3));
  }
  EXPECT_THAT(load("a.csv", "sep=,\ntext,label\ngood,pos\n").texts, ElementsAre("good"));
  EXPECT_THAT(load("a.csv", "sep=\t\ntext\tlabel\ngood\tpos\n").texts, ElementsAre("good"));
  EXPECT_THAT(load("a.csv", "sep=x\ngood\n", texts_alone().columns({.text = "sep=x"})).texts, ElementsAre("good"));
}

TEST_F(DataFilesTest, SkipsAndCountsRowsWithoutAnyValue) {
  const auto rows = load("a.csv", "text,label\n,\ngood,pos\n,\nbad,neg\n\"\",\n,,,,\n");
  EXPECT_THAT(rows.texts, ElementsAre("good", "bad"));
  EXPECT_THAT(rows.places.lines, ElementsAre(3, 5));
  EXPECT_THAT(rows.notes, ElementsAre("a.csv: skipped 4 rows without any value"));
  const auto texts = load("a.tsv", "id\ttext\n1\t\n\t\n2\tgood\n", texts_alone().other_columns(true));
  EXPECT_THAT(texts.texts, ElementsAre("", "good"));
  EXPECT_THAT(texts.others, ElementsAre(R"({"id":"1"})", R"({"id":"2"})"));
  EXPECT_THAT(texts.notes, ElementsAre("a.tsv: skipped 1 row without any value"));
  EXPECT_THAT(load("a.csv", "text\n\"\"\ngood\n", texts_alone()).texts, ElementsAre("", "good"));
  EXPECT_EQ(error("a.csv", "text,label\n,\n"), "a.csv: the file has no rows.");
}

TEST_F(DataFilesTest, RefusesAFolder) {
  std::filesystem::create_directory(folder_ / "texts");
  EXPECT_EQ(value_error([&] { load_rows(folder_ / "texts"); }, folder_), "texts: is a folder. Name its files.");
}

TEST_F(DataFilesTest, RefusesColumnsInJson) {
  const std::string advice = "the file holds columns, not rows. Write it with to_json(orient='records', lines=True).";
  EXPECT_EQ(error("a.json", R"({"id": {"0": 7}, "text": {"0": "a"}, "label": {"0": "x"}})"), "a.json:1: " + advice);
  EXPECT_EQ(error("a.json", R"({"text": ["a"], "label": ["x"]})"), "a.json:1: " + advice);
  EXPECT_EQ(error("a.json", R"({"text": {"0": "a"}})", texts_alone()), "a.json:1: " + advice);
  EXPECT_THAT(error("a.jsonl", "{\"text\": [\"a\"], \"label\": [\"x\"]}\n{\"text\": [\"b\"], \"label\": [\"x\"]}\n"),
              StartsWith("a.jsonl:1: row 1: the text is an array, not a string"));
  EXPECT_THAT(error("a.json", R"({"text": {"0": "a"}, "label": "x"})"),
              StartsWith("a.json:1: row 1: the text is an object, not a string"));
  const auto words = LoadRowsOptions().label_kind(LabelKind::kWords);
  EXPECT_THAT(load("a.json", R"({"text": ["a"], "label": ["O"]})", words).texts, ElementsAre("a"));
  EXPECT_THAT(error("a.jsonl", R"(["a", ["x"]])"), StartsWith("a.jsonl:1: row 1: the label is an array"));
}

TEST_F(DataFilesTest, ReadsTablesWithoutAHeader) {
  const auto rows = load("a.csv", "1,\"good, yes\",pos\n2,bad,neg\n", with({.columns = "id,text,label"}));
  EXPECT_THAT(rows.texts, ElementsAre("good, yes", "bad"));
  EXPECT_THAT(rows.places.lines, ElementsAre(1, 2));
  EXPECT_THAT(load("a.csv", "good,pos\n", with({.no_header = true})).texts, ElementsAre("good"));
  EXPECT_THAT(load("a.csv", "pos,good\n", with({.text = "2", .no_header = true})).texts, ElementsAre("good"));
  EXPECT_THAT(load("a.csv", "pos,7,good\n", with({.text = "3", .label = "1", .no_header = true})).labels,
              ElementsAre(RawLabel("pos")));
  EXPECT_THAT(load("a.csv", "good\nbad\n", texts_alone().columns({.no_header = true})).texts,
              ElementsAre("good", "bad"));
  EXPECT_THAT(load("a.csv", "a,1\nb,2\nc,3", with({.no_header = true}).limit(2)).texts, ElementsAre("a", "b"));
  EXPECT_EQ(error("a.csv", "id,Text,label\n1,good,pos\n", with({.no_header = true})),
            "a.csv:1: the line looks like a header. Leave out --no-header.");
  EXPECT_THAT(load("a.csv", "text,1\nlabel,2\n", with({.no_header = true})).texts, ElementsAre("text", "label"));
  EXPECT_EQ(error("a.csv", "good,pos\nbad,neg,3\n", with({.no_header = true})),
            "a.csv:2: row 2: 3 fields where the first row has 2. Quote a text that holds a comma, or pass the right "
            "--delimiter.");
  EXPECT_EQ(error("a.csv", "good,pos\n", with({.columns = "text,label,id"})),
            "a.csv:1: row 1: 2 fields where --columns names 3. Quote a text that holds a comma, or pass the right "
            "--delimiter.");
  EXPECT_EQ(error("a.csv", "text,label\ngood,pos\n", with({.columns = "text,label"})),
            "a.csv:1: the line is the header again. Remove it, or give the files one by one.");
  EXPECT_EQ(
      error("a.csv", "good,pos\n", with({.columns = "review,stars"})),
      "a.csv:1: no columns 'text' and 'label' among 'review', 'stars'. Pass --text-column 'review' --label-column "
      "'stars'.");
  EXPECT_THAT(error("a.csv", "good,pos\n", with({.columns = "text,text"})), HasSubstr("--columns names 'text' twice"));
}

TEST_F(DataFilesTest, NamesTheColumnThatIsMeant) {
  const auto missing = [&](std::string_view header, const ColumnNames& columns = {}) {
    return error("a.csv", std::string(header) + "\n", with(columns));
  };
  EXPECT_EQ(missing("Text,label"), "a.csv:1: no column 'text' among 'Text', 'label'. Pass --text-column 'Text'.");
  EXPECT_EQ(missing("text,Labels"), "a.csv:1: no column 'label' among 'text', 'Labels'. Pass --label-column 'Labels'.");
  EXPECT_EQ(
      missing("id,Review Text,Star Rating,date"),
      "a.csv:1: no columns 'text' and 'label' among 'id', 'Review Text', 'Star Rating', 'date'. Pass --text-column "
      "'Review Text' --label-column 'Star Rating'. If this line is a row and not a header, name the columns: "
      "--columns text,label.");
  EXPECT_EQ(missing("Review,stars,id", {.text = "Revew", .label = "starz"}),
            "a.csv:1: no columns 'Revew' and 'starz' among 'Review', 'stars', 'id'. Pass --text-column 'Review' "
            "--label-column 'stars'. If this line is a row and not a header, name the columns: --columns text,label.");
  EXPECT_EQ(missing("text,x", {.label = "y"}), "a.csv:1: no column 'y' among 'text', 'x'. Pass --label-column 'x'.");
  EXPECT_EQ(missing("a,b,text"), "a.csv:1: no column 'label' among 'a', 'b', 'text'. Pass --label-column NAME.");
  std::string many = "0";
  for (int column = 1; column < 100; ++column) many += "," + std::to_string(column);
  EXPECT_THAT(missing(many), HasSubstr("'18', '19', …. Pass --text-column NAME --label-column NAME."));
  EXPECT_EQ(error("a.jsonl", R"({"text": "a", "id": 3, "LABEL": 0})"),
            "a.jsonl:1: row 1: the row has no key 'label' among 'text', 'id', 'LABEL'. Pass --label-column 'LABEL'.");
  EXPECT_EQ(error("a.jsonl", "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"a\", \"id\": 3}"),
            "a.jsonl:2: row 2: the row has no label. Give it one, or remove the row.");
  EXPECT_EQ(error("a.csv", "text,toxic,obscene\n", labels_of(LabelKind::kSeveral).columns({.label = "toxic,obscen"})),
            "a.csv:1: no column 'obscen' among 'text', 'toxic', 'obscene'. Pass --label-column 'toxic,obscene'.");
}

TEST_F(DataFilesTest, ReadsJsonOfEachShapeUnderEachName) {
  for (const char* file : {"a.json", "a.jsonl"}) {
    for (const char* bytes :
         {R"([{"text": "a", "label": 0}, {"text": "b", "label": 1}])",
          "\n[\n{\"text\": \"a\", \"label\": 0}, [\"b\", 1]]\n", R"([["a", 0], ["b", 1]])",
          "{\"text\": \"a\", \"label\": 0}\n{\"text\": \"b\", \"label\": 1}\n",
          "{\"text\": \"a\",\n \"label\": 0}\n{\"text\": \"b\",\n \"label\": 1}\n", "[\"a\", 0]\n[\"b\", 1]\n",
          "[\"a\", 0]\r[\"b\", 1]\r", R"({"data": [["a", 0], ["b", 1]]})",
          R"({"version": {"x": [1]}, "data": [{"text": "a", "label": 0}, {"text": "b", "label": 1}], "more": [{}]})"}) {
      const auto rows = load(file, bytes);
      EXPECT_THAT(rows.texts, ElementsAre("a", "b")) << file << bytes;
      EXPECT_THAT(rows.labels, ElementsAre(RawLabel("0"), RawLabel("1"))) << file << bytes;
      EXPECT_THAT(load(file, bytes, LoadRowsOptions().limit(1)).texts, ElementsAre("a")) << file << bytes;
    }
  }
  EXPECT_THAT(load("a.json", R"(["a", "b"])", texts_alone()).texts, ElementsAre("a", "b"));
  EXPECT_THAT(load("a.jsonl", R"(["a", "b"])", texts_alone()).texts, ElementsAre("a"));
  const auto words = labels_of(LabelKind::kWords);
  EXPECT_THAT(load("a.jsonl", R"([["a", "b"], ["O", "X"]])", words).words, ElementsAre(Strings{"a", "b"}));
  EXPECT_THAT(load("a.jsonl", R"([{"text": ["a", "b"], "label": ["O", "X"]}])", words).words,
              ElementsAre(Strings{"a", "b"}));
  EXPECT_EQ(error("a.json", "{\"data\": [\n[\"a\", 0],\n[\"b\"]]}"),
            "a.json:3: row 2: the row has no label. Give it one, or remove the row.");
}

TEST_F(DataFilesTest, ReadsLinesThatEndInCarriageReturns) {
  EXPECT_THAT(load("a.txt", "one\r\rthree, 3\r", texts_alone()).texts, ElementsAre("one", "", "three, 3"));
  EXPECT_THAT(load("a.txt", "one\r\ntwo\r\n", texts_alone()).texts, ElementsAre("one", "two"));
  EXPECT_THAT(load("a.txt", "one\rmore\ntwo\n", texts_alone()).texts, ElementsAre("one\rmore", "two"));
  EXPECT_THAT(load("a.csv", "text,label\rgood,1\rbad,0\r").texts, ElementsAre("good", "bad"));
  EXPECT_THAT(load("a.conll", "a O\rb X\r\rc O\r", labels_of(LabelKind::kWords)).words,
              ElementsAre(Strings{"a", "b"}, Strings{"c"}));
}

TEST_F(DataFilesTest, ReadsConllWhoseFirstColumnNumbersTheWords) {
  const auto words = labels_of(LabelKind::kWords);
  const std::string line10 = "\t_\t_\t_\t_\t_\t_\n";
  const auto conll_u = load("a.conll",
                            "# sent_id = 1\n# text = The cat\n1\tThe\tthe\tDET" + line10 + "2\tcat\tcat\tNOUN" +
                                line10 + "\n1-2\tdont\t_\t_" + line10 + "1\tdo\tdo\tAUX" + line10 + "2\tnt\tnot\tPART" +
                                line10 + "2.1\tgo\tgo\tVERB" + line10,
                            words);
  EXPECT_THAT(conll_u.words, ElementsAre(Strings{"The", "cat"}, Strings{"do", "nt"}));
  EXPECT_THAT(conll_u.labels, ElementsAre(RawLabel(Strings{"DET", "NOUN"}), RawLabel(Strings{"AUX", "PART"})));
  EXPECT_THAT(conll_u.notes,
              ElementsAre("a.conll: column 1 numbers the words, so words are column 2 and labels column 4; "
                          "--label-column NUMBER changes it"));
  const auto germeval =
      load("a.conll", "#\thttp://a.b\t[2009]\n1\tThe\tO\tO\n2\tcat\tB-A\tO\n\n#\thttp://c\n1\t#\tO\tO\n", words);
  EXPECT_THAT(germeval.words, ElementsAre(Strings{"The", "cat"}, Strings{"#"}));
  EXPECT_THAT(load("a.conll", "1 The O B\n2 cat X O\n", labels_of(LabelKind::kWords).columns({.label = "3"})).labels,
              ElementsAre(RawLabel(Strings{"O", "X"})));
  // One word does not tell; the text after it does.
  EXPECT_THAT(load("a.conll", "1 Yes UH\n\n1. do AUX\n2. go VB\n", words).words,
              ElementsAre(Strings{"Yes"}, Strings{"do", "go"}));
  EXPECT_THAT(load("a.conll", "1 UH\n\n1 UH\n", words).words, ElementsAre(Strings{"1"}, Strings{"1"}));
  const auto texts = texts_alone().split_words([](auto text) { return Strings{std::string(text)}; });
  EXPECT_THAT(load("a.conll", "0 The\n1 cat\n", texts).words, ElementsAre(Strings{"The", "cat"}));
  EXPECT_EQ(error("a.conll", "1\tThe\n2\tcat\n", words),
            "a.conll:1: row 1: the line has only a word. Put its label into the last column.");
  // Tags leave no column for the words: these are the numbers. Prediction reads the same rows as training.
  for (const auto& options : {words, texts}) {
    EXPECT_THAT(load("a.conll", "1 O\n2 B-A\n", options).words, ElementsAre(Strings{"1", "2"}));
    EXPECT_THAT(load("a.conll", "1. O\n2. I-A\n", options).words, ElementsAre(Strings{"1.", "2."}));
  }
  EXPECT_THAT(load("a.conll", "a X O\nb X O\n\n1 X O\n2 X O\n", words).words,
              ElementsAre(Strings{"a", "b"}, Strings{"1", "2"}));
}

TEST_F(DataFilesTest, ReadsTheColumnsOfConllThatAreAskedFor) {
  const auto words = [](const ColumnNames& columns) { return labels_of(LabelKind::kWords).columns(columns); };
  const std::string conll2012 =
      "#begin document (bc/cctv); part 000\nbc/cctv 0 0 In IN *\nbc/cctv 0 1 it PRP *\n\n#end document\n";
  EXPECT_EQ(error("a.conll", conll2012, words({})),
            "a.conll:1: the file is in the format of CoNLL-2012. Its words are column 4: pass --text-column 4 and "
            "--label-column NUMBER.");
  const auto rows = load("a.conll", conll2012, words({.text = "4", .label = "5"}));
  EXPECT_THAT(rows.words, ElementsAre(Strings{"In", "it"}));
  EXPECT_THAT(rows.labels, ElementsAre(RawLabel(Strings{"IN", "PRP"})));
  EXPECT_EQ(error("a.conll", "a O\n", words({.text = "3"})),
            "a.conll:1: row 1: the line has only a word. Put its label into the last column.");
  EXPECT_EQ(error("a.conll", "a O\n", words({.label = "3"})),
            "a.conll:1: row 1: the line has 2 columns, and column 3 is needed.");
  EXPECT_EQ(
      error("a.conll", "a O\n", words({.text = "word"})),
      "a.conll:1: the columns of a .conll file have numbers, from 1. Pass --text-column with a number, not 'word'.");
}

TEST_F(DataFilesTest, NamesFilesThatAreNotRead) {
  EXPECT_EQ(error("a.xlsx", "PK\x03\x04"), "a.xlsx: is a spreadsheet. In Excel, save it as \"CSV UTF-8\".");
  EXPECT_EQ(error("a.ods", "PK\x03\x04"), "a.ods: is a spreadsheet. In LibreOffice, save it as \"Text CSV\".");
  EXPECT_EQ(error("a.pdf", "%PDF"), "a.pdf: is a document. Write each text and its label into a row of a .csv file.");
  EXPECT_THAT(error("a.csv", "PK\x03\x04..."), StartsWith("a.csv: the file is a zip archive, as .xlsx files are."));
  EXPECT_THAT(error("a.csv", "\xD0\xCF\x11\xE0..."), StartsWith("a.csv: the file is a file of an old Excel or Word."));
  EXPECT_EQ(error("a.csv", "PAR1..."), "a.csv: the file is Parquet. Name it .parquet.");
}

}  // namespace
}  // namespace mezzo::text
