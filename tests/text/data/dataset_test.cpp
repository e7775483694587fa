#include "mezzo/text/data/dataset.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/randperm.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>
#include <set>

#include "text/data/raw_labels.h"
#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::StartsWith;
using Strings = std::vector<std::string>;
using Labels = std::vector<RawLabel>;

LoadRowsOptions of_kind(LabelKind kind) { return LoadRowsOptions().label_kind(kind); }
LoadRowsOptions no_labels() { return of_kind(LabelKind::kNone); }

class LoadRowsTest : public testing::Test {
 protected:
  LabeledRows load(std::string_view file, std::string_view bytes, const LoadRowsOptions& options = {}) {
    return load_rows(folder_.write(file, bytes), options);
  }
  std::string error(std::string_view file, std::string_view bytes, const LoadRowsOptions& options = {}) {
    return value_error([&] { load(file, bytes, options); }, folder_);
  }

  const ScratchFolder folder_;
};

TEST_F(LoadRowsTest, ReadsJsonPairsAndObjects) {
  const auto rows =
      load("a.json", "[[\"good\\n\", 1],\n {\"id\": [1], \"label\": 0, \"text\": \"\"},\n\n[\"\\u4e2d 文\", 2]\n]\n");
  EXPECT_EQ(rows.texts, (Strings{"good\n", "", "中 文"}));
  EXPECT_EQ(rows.labels, (Labels{id(1), id(0), id(2)}));
  EXPECT_THAT(rows.places.lines, ElementsAre(1, 2, 4));
}

TEST_F(LoadRowsTest, TakesQuotesForCharactersWhereToldTo) {
  const auto unquoted = LoadRowsOptions().columns({.unquoted = true});
  const auto rows = load("a.tsv", "label\ttext\n1\t\"hi\n0\tfoo\n\n1\t\"\n0\t\"a\"\"b\" c\n", unquoted);
  EXPECT_EQ(rows.texts, (Strings{"\"hi", "foo", "\"", "\"a\"\"b\" c"}));
  EXPECT_THAT(rows.places.lines, ElementsAre(2, 3, 5, 6));
  EXPECT_EQ(
      error("a.csv", "text,label\n\"a, b\",1\n", unquoted),
      "a.csv:2: row 1: 3 fields where the header names 2. A text cannot hold a comma, or pass the right --delimiter.");
}

TEST_F(LoadRowsTest, ReadsPairsOfTexts) {
  const auto json = load("a.jsonl",
                         "{\"text_pair\": \"so\", \"text\": \"is it?\", \"label\": 1}\n"
                         "{\"text\": \"is it?\", \"text_pair\": \"\", \"label\": 0}\n");
  EXPECT_EQ(json.texts, (Strings{"is it?", "is it?"}));
  EXPECT_EQ(json.text_pairs, (Strings{"so", ""}));
  const auto csv = load("a.csv", "text_pair,text,label\nso,\"is it, then?\",1\nor,,0\n");
  EXPECT_EQ(csv.texts, (Strings{"is it, then?", ""}));
  EXPECT_EQ(csv.text_pairs, (Strings{"so", "or"}));
  EXPECT_TRUE(load("a.jsonl", "{\"text\": \"a\", \"text_pair\": null, \"label\": 1}").text_pairs.empty());
}

TEST_F(LoadRowsTest, RefusesPairsAmongSingleTexts) {
  const std::string pair = "{\"text\": \"a\", \"text_pair\": \"b\", \"label\": 1}\n";
  const std::string single = "{\"text\": \"a\", \"label\": 1}\n";
  EXPECT_EQ(error("f.jsonl", pair + single),
            "f.jsonl:2: row 2: the row has no text_pair where f.jsonl:1 has one. Give every row one, or none.");
  EXPECT_EQ(error("f.jsonl", single + pair),
            "f.jsonl:2: row 2: the row has a text_pair where f.jsonl:1 has none. Give every row one, or none.");
  EXPECT_EQ(error("f.jsonl", "{\"text\": \"a\", \"text_pair\": 1, \"label\": 1}"),
            "f.jsonl:1: row 1: the text_pair is a number, not a string.");
  EXPECT_EQ(error("f.jsonl", "{\"text_pair\": \"\", \"text\": \"a\", \"text_pair\": \"\", \"label\": 1}"),
            "f.jsonl:1: row 1: the key 'text_pair' occurs twice in one object. Keep one.");
  EXPECT_EQ(error("f.csv", "text,text_pair,text_pair,label\n"), "f.csv:1: two columns 'text_pair'. Rename one.");
}

TEST_F(LoadRowsTest, ReadsJsonLines) {
  const auto rows = load("a.JSONL", "\xEF\xBB\xBF[\"a\", \"joy\"]\r\n\r\n  \n{\"text\": \"b\", \"label\": \"anger\"}");
  EXPECT_EQ(rows.texts, (Strings{"a", "b"}));
  EXPECT_EQ(rows.labels, (Labels{name("joy"), name("anger")}));
  EXPECT_THAT(rows.places.lines, ElementsAre(1, 4));
}

TEST_F(LoadRowsTest, ReadsCsvWithQuotesLineBreaksAndOtherColumns) {
  const auto rows =
      load("a.csv", "\xEF\xBB\xBFid,label,text\r\n1,0,\"a, \"\"b\"\"\r\nc\"\r\n\r\n2,1,5\" wide\r\n3,1,\r\n");
  EXPECT_EQ(rows.texts, (Strings{"a, \"b\"\r\nc", "5\" wide", ""}));
  EXPECT_EQ(rows.labels, (Labels{id(0), id(1), id(1)}));
  EXPECT_THAT(rows.places.lines, ElementsAre(2, 5, 6));
}

TEST_F(LoadRowsTest, ReadsTsv) {
  const auto rows = load("a.tsv", "text\tlabel\na, b\tjoy\n\"c\td\"\tanger");
  EXPECT_EQ(rows.texts, (Strings{"a, b", "c\td"}));
  EXPECT_EQ(rows.labels, (Labels{name("joy"), name("anger")}));
}

TEST_F(LoadRowsTest, KeepsClassesAsTheyAreWritten) {
  const Labels expected{name("1"), name("-2"), name("1.0"), name("01"), name("True")};
  EXPECT_EQ(load("a.csv", "text,label\na,1\nb,-2\nc,1.0\nd,01\ne,True\n").labels, expected);
  EXPECT_EQ(load("a.jsonl", "[\"a\", 1]\n[\"b\", -2]\n[\"c\", 1.0]\n[\"d\", \"01\"]\n[\"e\", \"True\"]\n").labels,
            expected);
  EXPECT_EQ(load("a.jsonl", "[\"a\", true]\n[\"b\", false]\n").labels, (Labels{name("true"), name("false")}));
}

TEST_F(LoadRowsTest, ReadsAColumnForEachLabel) {
  const auto options = [](const std::string& label) { return of_kind(LabelKind::kSeveral).columns({.label = label}); };
  const auto toxic = options("toxic,threat,insult");
  const Labels expected{Strings{"insult", "toxic"}, Strings{}, Strings{"threat"}};
  EXPECT_EQ(load("a.csv", "id,text,toxic,threat,insult\n1,a,1,0,1\n2,b,0,0,0\n3,c,False,TRUE,0.0\n", toxic).labels,
            expected);
  EXPECT_EQ(load("a.jsonl",
                 R"({"text": "a", "toxic": 1, "threat": 0, "insult": true}
{"toxic": false, "threat": 0, "insult": 0, "text": "b"}
{"text": "c", "toxic": 0, "threat": "1", "insult": 0.0})",
                 toxic)
                .labels,
            expected);
  EXPECT_EQ(load("a.csv", "text,\"a, b\",c\nx,1,0\n", options("\"a, b\",c")).labels, Labels{Strings{"a, b"}});
  EXPECT_EQ(load("a.csv", "text,b,c,d\nx,1,0,7\n", options("b,c").other_columns(true)).others, Strings{R"({"d":"7"})"});
  EXPECT_EQ(error("a.csv", "text,toxic,threat,insult\na,1,0,1\nb,,0,0\n", toxic),
            "a.csv:3: row 2: the row has no label in 'toxic'. Write 0 or 1, or remove the row.");
  EXPECT_EQ(error("a.csv", "text,toxic,threat,insult\na,1,-1,1\n", toxic),
            "a.csv:2: row 1: label '-1' in 'threat' is not 0, 1, true or false. Several label columns say which labels "
            "a text has.");
  EXPECT_THAT(error("a.csv", "text,toxic,insult\na,1,1\n", toxic), StartsWith("a.csv:1: no column 'threat' among"));
  EXPECT_EQ(error("a.jsonl", R"({"text": "a", "toxic": 1, "threat": null, "insult": 0})", toxic),
            "a.jsonl:1: row 1: the row has no label in 'threat'. Write 0 or 1, or remove the row.");
  EXPECT_EQ(error("a.jsonl", R"({"text": "a", "toxic": 1, "insult": 0})", toxic),
            "a.jsonl:1: row 1: the row has no key 'threat' among 'text', 'toxic', 'insult'. Pass --label-column "
            "'toxic,NAME,insult'.");
  EXPECT_EQ(error("a.jsonl", R"({"text": "a", "toxic": [], "threat": 0, "insult": 0})", toxic),
            "a.jsonl:1: row 1: the label 'toxic' is an array, not 0, 1, true or false.");
  EXPECT_EQ(error("a.jsonl", R"({"text": "a", "toxic": 1, "toxic": 1})", toxic),
            "a.jsonl:1: row 1: the key 'toxic' occurs twice in one object. Keep one.");
  EXPECT_EQ(error("a.jsonl", R"(["a", 1])", toxic), "a.jsonl:1: row 1: the row is an array, which has no \"toxic\".");
  EXPECT_EQ(error("a.csv", "text,b,c\n", LoadRowsOptions().columns({.label = "b,c"})),
            "--label-column names 2 columns, one for each label, which needs --task multi_label_classification");
  EXPECT_EQ(error("a.csv", "text,b\n", options("b,")), "--label-column 'b,' has an empty name; remove a comma");
  EXPECT_EQ(error("a.csv", "text,b\n", options("b,c,b")), "--label-column names 'b' twice");
}

TEST_F(LoadRowsTest, ReadsNoLabelsWhereNoneAreAskedFor) {
  EXPECT_EQ(load("a.csv", "text\na\n\nb", no_labels()).labels, (Labels{kNone, kNone}));
  EXPECT_EQ(load("a.csv", "text,label\na,\nb,3", no_labels()).labels, (Labels{kNone, kNone}));
  const auto rows =
      load("a.json", R"(["a", {"text": "b", "label": 1.5}, ["c"], ["d", null], ["e", ["x"]]])", no_labels());
  EXPECT_EQ(rows.texts, (Strings{"a", "b", "c", "d", "e"}));
  EXPECT_EQ(rows.labels, Labels(5));
  EXPECT_EQ(load("a.jsonl", "\"a\"\n{\"text\":\"b\"}", no_labels()).texts, (Strings{"a", "b"}));
  EXPECT_EQ(load("a.txt", "one\r\n\n three\n", no_labels()).texts, (Strings{"one", "", " three"}));
}

TEST_F(LoadRowsTest, ReadsSeveralLabels) {
  const auto several = of_kind(LabelKind::kSeveral);
  const Labels expected{Strings{"a", "b"}, Strings{}, Strings{"b"}};  // sorted, each once
  EXPECT_EQ(load("a.json", R"([["x", ["b", "a", "b"]], ["y", []], {"text": "z", "label": ["b"]}])", several).labels,
            expected);
  EXPECT_EQ(load("a.csv", "text,label\nx,b|a|b\ny,\nz,b", several).labels, expected);
  EXPECT_EQ(error("a.json", R"([["x", "b"]])", several),
            "a.json:1: row 1: the label is a string, not an array of strings.");
  EXPECT_EQ(error("a.json", R"([["x", ["b", 1]]])", several),
            "a.json:1: row 1: one of the labels is a number, not a string.");
  EXPECT_EQ(error("a.json", R"([["x", [""]]])", several),
            "a.json:1: row 1: one of the labels is an empty string. Name it, or leave it out.");
  EXPECT_EQ(error("a.csv", "text,label\nx,b\ny,a|", several),
            "a.csv:3: row 2: one of the labels is an empty string. Name it, or leave it out.");
  EXPECT_EQ(error("a.json", R"([["x", ["b"]], ["y"]])", several),
            "a.json:1: row 2: the row has no label. Give it one, or remove the row.");
  EXPECT_EQ(error("a.json", R"([["x", ["b"]]])"),
            "a.json:1: row 1: the label is an array, not a string, a number or a boolean; several labels a text "
            "need --task multi_label_classification, labels of words need --task token_classification.");
}

TEST_F(LoadRowsTest, ReadsNumbers) {
  const auto numbers = of_kind(LabelKind::kNumber);
  EXPECT_EQ(load("a.json", R"([["x", 1], ["y", -2.5e-3], {"text": "z", "label": 0}])", numbers).labels,
            (Labels{1.0, -2.5e-3, 0.0}));
  EXPECT_EQ(load("a.csv", "text,label\nx,1\ny,-2.5e-3", numbers).labels, (Labels{1.0, -2.5e-3}));
  EXPECT_EQ(error("a.csv", "text,label\nx,1\ny,1.5 ", numbers), "a.csv:3: row 2: label '1.5 ' is not a finite number.");
  for (const std::string number : {"inf", "nan", "1e999", "-"}) {
    EXPECT_EQ(error("a.csv", "text,label\nx," + number, numbers),
              "a.csv:2: row 1: label '" + number + "' is not a finite number.");
  }
  EXPECT_EQ(error("a.csv", "text,label\nx,\"0,370\"", numbers),
            "a.csv:2: row 1: label '0,370' is not a finite number. Write 0.370 with a point.");
  EXPECT_EQ(error("a.csv", "text,label\nx,", numbers),
            "a.csv:2: row 1: the row has no label. Give it one, or remove the row.");
  EXPECT_EQ(error("a.json", R"([["x", "1"]])", numbers), "a.json:1: row 1: the label is a string, not a number.");
}

TEST_F(LoadRowsTest, ReadsTheColumnsThatAreAskedFor) {
  const auto options = LoadRowsOptions().columns({.text = "q1", .text_pair = "q2", .label = "is_duplicate"});
  const std::string json = R"([{"q1": "a", "text": "x", "q2": "b", "is_duplicate": 1, "label": 0.5}])";
  for (const auto& [file, bytes] : std::vector<std::pair<std::string, std::string>>{
           {"a.json", json}, {"a.csv", "label,q2,text,is_duplicate,q1\n0.5,b,x,1,a\n"}}) {
    const auto rows = load(file, bytes, options);
    EXPECT_EQ(rows.texts, (Strings{"a"}));
    EXPECT_EQ(rows.text_pairs, (Strings{"b"}));
    EXPECT_EQ(rows.labels, (Labels{id(1)}));
  }
  EXPECT_EQ(error("a.csv", "q1,is_duplicate,text_pair\na,1,b", options),
            "a.csv:1: no column 'q2' among 'q1', 'is_duplicate', 'text_pair'. Pass --pair-column 'text_pair'.");
  EXPECT_EQ(error("a.jsonl", R"({"q1": "a", "is_duplicate": 1})", options),
            "a.jsonl:1: row 1: the row has no key 'q2' among 'q1', 'is_duplicate'. Pass --pair-column NAME.");
  EXPECT_EQ(error("a.jsonl", R"({"q1": "a", "q2": null, "is_duplicate": 1})", options),
            "a.jsonl:1: row 1: the q2 is null, not a string.");
  EXPECT_EQ(error("a.jsonl", R"(["a", 1])", options), "a.jsonl:1: row 1: the row is an array, which has no \"q2\".");
  EXPECT_EQ(
      error("a.csv", "x", LoadRowsOptions().columns({.text = "label"})),
      "--text-column 'label', --pair-column 'text_pair' and --label-column 'label' must be different columns, but two "
      "have one name");
  EXPECT_EQ(error("a.csv", "x", LoadRowsOptions().columns({.text = ""})), "--text-column is empty; name a column");
}

TEST_F(LoadRowsTest, ReadsNothingAfterTheLimit) {
  const auto two = LoadRowsOptions().limit(2);
  EXPECT_EQ(load("a.json", "[[\"a\",0],[\"b\",1], nonsense", two).texts, (Strings{"a", "b"}));
  EXPECT_EQ(load("a.jsonl", "[\"a\",0]\n[\"b\",1]\nnonsense", two).texts, (Strings{"a", "b"}));
  EXPECT_EQ(load("a.csv", "text,label\na,0\nb,1\nnonsense", two).texts, (Strings{"a", "b"}));
  EXPECT_EQ(load("a.txt", "a\nb\nc", no_labels().limit(2)).texts, (Strings{"a", "b"}));
  EXPECT_EQ(error("a.json", "[]", LoadRowsOptions().limit(-1)),
            "load_rows: limit must be 0 (all rows) or positive, got -1.");
}

TEST_F(LoadRowsTest, ReadsNoMoreOfAFileThanTheLimitAsksFor) {
  // The writer of a pipe that stays open: a reader that wants more than two
  // rows would wait for ever.
  for (const auto& [file, rows] :
       std::vector<std::pair<std::string, std::string>>{{"p.json", "[[\"a\",0],[\"b\",1]"},
                                                        {"p.jsonl", "[\"a\",0]\n[\"b\",1]\n"},
                                                        {"p.csv", "text,label\na,0\nb,1\n"},
                                                        {"p.tsv", "text\tlabel\na\t0\nb\t1\n"}}) {
    const auto path = folder_ / file;
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    const int pipe = open(path.c_str(), O_RDWR);  // so that neither side waits for the other to open it
    ASSERT_EQ(write(pipe, rows.data(), rows.size()), static_cast<ssize_t>(rows.size()));
    EXPECT_EQ(load_rows(path, LoadRowsOptions().limit(2)).texts, (Strings{"a", "b"})) << file;
    close(pipe);
  }
}

TEST_F(LoadRowsTest, ReadsTheSameAcrossTheEndsOfBlocks) {
  // Texts of all lengths around the block's put every kind of token on its edge.
  for (size_t length = (64 << 10) - 40; length < (64 << 10) + 8; ++length) {
    const std::string text = std::string(length, 'x') + "é\n\"";
    EXPECT_EQ(load("a.json", "[[\"" + std::string(length, 'x') +
                                 "\\u00e9\\n\\\"\", 123],\n{\"text\": \"中\", \"n\": [null, true, "
                                 "-1.5e-3], \"label\": 0}]")
                  .texts,
              (Strings{text, "中"}));
    EXPECT_EQ(load("a.jsonl", "[\"" + std::string(length, 'x') + "é\\n\\\"\", 1]\r\n[\"b\", 0]").texts,
              (Strings{text, "b"}));
    const auto rows = load("a.csv", "text,label\r\n\"" + std::string(length, 'x') + "é\n\"\"\",1\r\n\"b\"\"\",0\r\n");
    EXPECT_EQ(rows.texts, (Strings{text, "b\""}));
    EXPECT_THAT(rows.places.lines, ElementsAre(2, 4));
  }
}

TEST_F(LoadRowsTest, RefusesFilesItCannotRead) {
  EXPECT_EQ(value_error([&] { load_rows(folder_ / "none.csv"); }, folder_),
            "none.csv: cannot be read: No such file or directory.");
  std::filesystem::create_directory(folder_ / "d.csv");
  EXPECT_EQ(value_error([&] { load_rows(folder_ / "d.csv"); }, folder_), "d.csv: is a folder. Name its files.");
  EXPECT_EQ(
      error("a.xml", ""),
      "a.xml: a data file must be named .json, .jsonl, .csv, .tsv, .txt, .conll or .parquet. Except for .parquet, .gz "
      "or .zst may follow. For a table of another name, pass --delimiter.");
  EXPECT_EQ(error("a.txt", "a"),
            "a.txt:1: row 1: a .txt file can only have fastText's labels (__label__spam and a text). If the file is a "
            "table, pass --delimiter, such as --delimiter tab.");
}

TEST_F(LoadRowsTest, ReadsLabelsOfFastText) {
  const auto several = LoadRowsOptions().label_kind(LabelKind::kSeveral);
  const auto rows = load(
      "a.txt", "__label__spam buy  now\r\n\thello __label__ham\t you x__label__y\n__label__spam\nlast __label__x \n");
  EXPECT_THAT(rows.texts, ElementsAre("buy  now", "\thello you x__label__y", "", "last"));
  EXPECT_THAT(rows.labels, ElementsAre(RawLabel("spam"), RawLabel("ham"), RawLabel("spam"), RawLabel("x")));
  using Names = std::vector<std::string>;
  const auto sets = load("a.txt", "__label__b __label__a __label__b x\nnone of them\n", several);
  EXPECT_THAT(sets.texts, ElementsAre("x", "none of them"));
  EXPECT_THAT(sets.labels, ElementsAre(RawLabel(Names{"a", "b"}), RawLabel(Names{})));
  const auto texts = load("a.txt", "__label__a x\ny\n", LoadRowsOptions().label_kind(LabelKind::kNone));
  EXPECT_THAT(texts.texts, ElementsAre("x", "y"));
  EXPECT_EQ(error("a.txt", "__label__a x\ny\n"),
            "a.txt:2: row 2: the line has 0 labels of the form __label__name, and every row needs one.");
  EXPECT_EQ(error("a.txt", "__label__a __label__b x\n"),
            "a.txt:1: row 1: the line has 2 labels of the form __label__name. Several labels a text need --task "
            "multi_label_classification.");
  EXPECT_EQ(error("a.txt", "__label__ x\n", several),
            "a.txt:1: row 1: one of the labels is an empty string. Name it, or leave it out.");
}

TEST_F(LoadRowsTest, FindsLabelsOfFastTextWhereverTheyStandInALine) {
  // fasttext 0.9.2: words good film really, labels pos neg.
  const char* const line = "__label__pos good film really __label__neg\n";
  EXPECT_EQ(error("a.txt", line),
            "a.txt:1: row 1: the line has 2 labels of the form __label__name. Several labels a text need --task "
            "multi_label_classification.");
  const auto several = load("a.txt", line, of_kind(LabelKind::kSeveral));
  EXPECT_THAT(several.texts, ElementsAre("good film really"));
  EXPECT_THAT(several.labels, ElementsAre(RawLabel(Strings{"neg", "pos"})));
  EXPECT_THAT(load("a.txt", line, no_labels()).texts, ElementsAre("good film really"));
  EXPECT_THAT(load("a.txt", "good __label__pos\nplain\n", no_labels()).texts, ElementsAre("good", "plain"));
  EXPECT_EQ(
      error("a.txt", "plain \ngood __label__pos\n", no_labels()),
      "a.txt:2: row 2: the line has the fastText label __label__pos, and line 1 has none. Give line 1 a label, or "
      "remove this one.");
  EXPECT_THAT(load("a.txt", " plain  text \n", no_labels()).texts, ElementsAre(" plain  text "));
}

TEST_F(LoadRowsTest, RefusesAListInOneString) {
  const std::string advice =
      " is a list in one string. Write several labels as joy|love in a cell, or as an array in JSON";
  const auto several = of_kind(LabelKind::kSeveral);
  EXPECT_EQ(error("a.csv", "text,label\na,\"['joy', 'love']\"\n", several),
            "a.csv:2: row 1: the label '['joy', 'love']'" + advice + ".");
  EXPECT_EQ(error("a.csv", "text,label\na,['joy|love']\n", several),
            "a.csv:2: row 1: the label '['joy|love']'" + advice + ".");
  EXPECT_EQ(error("a.csv", "text,label\na,['joy']\n"),
            "a.csv:2: row 1: the label '['joy']'" + advice + ", with --task multi_label_classification.");
  EXPECT_EQ(error("a.jsonl", R"(["a", "[\"joy\"]"])"),
            "a.jsonl:1: row 1: the label '[\"joy\"]'" + advice + ", with --task multi_label_classification.");
  for (const char* list :
       {"[]", "('a', 'b')", "{'a'}", "[0, 1]", "[ 0.5 -1 ]", "[-1]", "[3]", "[1.e-03 0.]", "[0 1 ... 0]"}) {
    EXPECT_EQ(error("a.tsv", "text\tlabel\na\t" + std::string(list) + "\n", several),
              "a.tsv:2: row 1: the label '" + std::string(list) + "'" + advice + ".");
  }
  const auto names = load("a.tsv", "text\tlabel\na\t[URL]\nb\t(x)\nc\t{y}\nd\t[\ne\t]\nf\t['a'\n");
  EXPECT_THAT(names.labels, ElementsAre(RawLabel("[URL]"), RawLabel("(x)"), RawLabel("{y}"), RawLabel("["),
                                        RawLabel("]"), RawLabel("['a'")));
  for (const char* name : {"[18-25]", "[36+]", "[1st]", "[-]", "[1 - 2]", "[...]", "[2024-01-31]", "[1.2.3]"}) {
    EXPECT_THAT(load("a.tsv", "text\tlabel\na\t" + std::string(name) + "\n").labels, ElementsAre(RawLabel(name)));
  }
  EXPECT_EQ(error("a.csv", "text,label\na,\"[0 1\n 0 1]\"\n", several),  // as NumPy breaks a long array
            "a.csv:2: row 1: the label '[0 1  0 1]'" + advice + ".");
}

TEST_F(LoadRowsTest, NamesTheTaskOfOtherLabelsAsTheCallerSays) {
  const auto options = LoadRowsOptions().on_other_task("a model of");
  EXPECT_THAT(error("a.txt", "__label__a __label__b x\n", options),
              EndsWith("need a model of multi_label_classification."));
  EXPECT_THAT(error("a.csv", "text,label\na,['joy']\n", options),
              EndsWith("with a model of multi_label_classification."));
  EXPECT_THAT(
      error("a.json", R"([["a", ["joy"]]])", options),
      EndsWith("several labels a text need a model of multi_label_classification, labels of words need a model of "
               "token_classification."));
}

TEST_F(LoadRowsTest, RefusesTheHeaderAgain) {
  EXPECT_EQ(error("a.csv", "text,label\ngood,1\n\xEF\xBB\xBFtext,label\nfun,1\n"),
            "a.csv:3: the line is the header again. Remove it, or give the files one by one.");
  EXPECT_EQ(error("a.tsv", "label\ttext\n1\tgood\n\nlabel\ttext\n", no_labels()),
            "a.tsv:4: the line is the header again. Remove it, or give the files one by one.");
  EXPECT_EQ(error("a.csv", "text\ngood\n\xEF\xBB\xBFtext\n", no_labels()),
            "a.csv:3: the line is the header again. Remove it, or give the files one by one.");
  EXPECT_THAT(load("a.csv", "text\ngood\ntext\n", no_labels()).texts, ElementsAre("good", "text"));
  EXPECT_THAT(load("a.csv", "text,label\ntext,1\n").texts, ElementsAre("text"));
}

TEST_F(LoadRowsTest, NamesValuesOfOtherLanguages) {
  const auto row = [&](std::string_view value) {
    return error("a.jsonl", R"({"text": "a", "label": 0, "score": )" + std::string(value) + "}");
  };
  const std::string where = "a.jsonl:1: row 1: not valid JSON: ";
  for (const char* word : {"NaN", "Infinity", "-Infinity", "None"}) {
    EXPECT_EQ(row(word), where + word + " is not a JSON value. Write null in its place.");
  }
  EXPECT_EQ(row("True"), where + "True is not a JSON value. Write true in its place.");
  EXPECT_EQ(row("'a'"), where + "a string in single quotes. Write it in double quotes.");
  EXPECT_EQ(row("-x"), where + "a digit expected.");
  EXPECT_EQ(error("a.jsonl", "{'text': 'a'}"), where + "a string in single quotes. Write it in double quotes.");
  EXPECT_EQ(error("a.jsonl", "[\"a\", 0]\n\xEF\xBB\xBF[\"b\", 1]\n"),
            "a.jsonl:2: row 2: not valid JSON: a byte order mark inside the file. Remove it.");
  for (const char* word : {"nan", "NULL", "Null", "undefined", "inf", "-inf"}) {
    EXPECT_EQ(row(word), where + word + " is not a JSON value. Write null in its place.");
  }
  EXPECT_EQ(row("FALSE"), where + "FALSE is not a JSON value. Write false in its place.");
  EXPECT_EQ(row("[{\"a\": NaN}]"), where + "NaN is not a JSON value. Write null in its place.");
  const std::string in_quotes = where + "True is not a JSON value. For a text or a name, write \"True\".";
  EXPECT_EQ(error("a.jsonl", R"({"text": "a", "label": True})"), in_quotes);
  EXPECT_EQ(error("a.jsonl", R"([True, 0])"), in_quotes);
  EXPECT_EQ(load("a.jsonl", R"(["True", "True"])").labels, Labels{name("True")});
  EXPECT_EQ(row("nil"), where + "null expected.");
  // null would be refused there.
  for (const char* needed :
       {R"({"text": NaN, "label": 0})", R"({"text": "a", "label": NaN})", R"(["a", NaN])", "NaN"}) {
    EXPECT_EQ(error("a.jsonl", needed), where + "NaN is not a JSON value. Give it a value, or remove the row.");
  }
  EXPECT_EQ(error("a.jsonl", R"({"text": "a", "label": NaN})", no_labels()),
            where + "NaN is not a JSON value. Write null in its place.");
}

TEST_F(LoadRowsTest, RefusesFilesWithoutRows) {
  for (const char* file : {"a.json", "a.jsonl", "a.csv", "a.tsv"}) {
    EXPECT_EQ(error(file, ""), std::string(file) + ": the file is empty.");
    EXPECT_EQ(error(file, "\xEF\xBB\xBF"), std::string(file) + ": the file is empty.");
  }
  EXPECT_EQ(error("a.json", "[\n]"), "a.json: the file has no rows.");
  EXPECT_EQ(error("a.jsonl", "\n \n"), "a.jsonl: the file has no rows.");
  EXPECT_EQ(error("a.csv", "text,label\n\n"), "a.csv: the file has no rows.");
  EXPECT_EQ(error("a.csv", "\n\n"), "a.csv: the file has no rows.");
}

TEST_F(LoadRowsTest, ReportsAnUnusualJsonRowWithItsLineAndNumber) {
  const auto at_row = [&](std::string_view row) {
    return error("a.json", "[[\"a\", 0],\n[\"b\", 1],\n\n" + std::string(row) + "]");
  };
  EXPECT_EQ(at_row("3"), R"(a.json:4: row 3: the row is a number, not [text, label] or {"text": …, "label": …}.)");
  EXPECT_EQ(at_row("\"c\""), R"(a.json:4: row 3: the row is a string, not [text, label] or {"text": …, "label": …}.)");
  EXPECT_EQ(at_row("[]"), "a.json:4: row 3: the row is an empty array, not [text, label].");
  EXPECT_EQ(error("a.jsonl", "3", no_labels()),
            R"(a.jsonl:1: row 1: the row is a number, not a text, [text] or {"text": …}.)");
  EXPECT_EQ(error("a.jsonl", "[]", no_labels()), "a.jsonl:1: row 1: the row is an empty array, not [text].");
  EXPECT_EQ(at_row("[\"c\"]"), "a.json:4: row 3: the row has no label. Give it one, or remove the row.");
  EXPECT_EQ(at_row("[\"c\", \"\"]"), "a.json:4: row 3: the row has no label. Give it one, or remove the row.");
  EXPECT_EQ(at_row("[\"c\", null]"), "a.json:4: row 3: the row has no label. Give it one, or remove the row.");
  EXPECT_EQ(at_row("[\"c\", 1, 2]"), "a.json:4: row 3: the row has more than two elements; it must be [text, label].");
  EXPECT_EQ(at_row("[3, 1]"), "a.json:4: row 3: the text is a number, not a string.");
  EXPECT_EQ(at_row("[\"c\", {}]"), "a.json:4: row 3: the label is an object, not a string, a number or a boolean.");
  EXPECT_EQ(at_row("{\"label\": 1}"),
            "a.json:4: row 3: the row has no key 'text' among 'label'. Pass --text-column NAME.");
  EXPECT_EQ(at_row("{\"text\": \"c\"}"), "a.json:4: row 3: the row has no label. Give it one, or remove the row.");
  EXPECT_EQ(at_row("{\"text\": null, \"label\": 1}"), "a.json:4: row 3: the text is null, not a string.");
  EXPECT_EQ(at_row("{\"text\": \"c\",\n\"text\": \"d\"}"),
            "a.json:5: row 3: the key 'text' occurs twice in one object. Keep one.");
  EXPECT_EQ(at_row("{\"label\": 1, \"label\": 1}"),
            "a.json:4: row 3: the key 'label' occurs twice in one object. Keep one.");
  const auto copied = [&](std::string_view row) { return error("a.jsonl", row, no_labels().other_columns(true)); };
  EXPECT_EQ(copied(R"({"text": "c", "x": 1, "y": 1, "x": 2})"),
            "a.jsonl:1: row 1: the key 'x' occurs twice in one object. Keep one.");
  EXPECT_EQ(copied(R"({"text": "c", "label": 1, "label": 2})"),
            "a.jsonl:1: row 1: the key 'label' occurs twice in one object. Keep one.");
  EXPECT_EQ(copied(R"({"text": "c", "x": [{"a": 1, "a": 2}]})"),
            "a.jsonl:1: row 1: the key 'a' occurs twice in one object. Keep one.");
  EXPECT_EQ(load("a.jsonl", R"({"text": "c", "x": {"a": 1}, "y": [{"a": 1}, {"a": 1}], "a": 2})",
                 no_labels().other_columns(true))
                .others,
            Strings{R"({"x":{"a":1},"y":[{"a":1},{"a":1}],"a":2})"});
  EXPECT_EQ(error("a.jsonl", R"({"text": "c", "label": 1, "x": {"a": 1, "a": 2}})"),
            "a.jsonl:1: row 1: the key 'a' occurs twice in one object. Keep one.");  // also if nobody reads it
  for (const char* text : {"\\ud83d", "\\ude00", "\\ud83d\\u0041"}) {
    EXPECT_EQ(at_row("[\"" + std::string(text) + "\", 1]"),
              "a.json:4: row 3: not valid JSON: half a surrogate pair in a string.");
  }
  EXPECT_EQ(at_row("[\"c\" 1]"), "a.json:4: row 3: not valid JSON: ',' or ']' expected.");
  EXPECT_EQ(at_row("[\"c\", 1]\n [\"d\", 1]"), "a.json:5: not valid JSON: ',' or ']' expected.");
}

TEST_F(LoadRowsTest, ReportsTheRowOfOneLongLine) {
  std::string json = "[";
  for (int i = 0; i < 1000; ++i) json += "[\"text\", 1], ";
  EXPECT_EQ(error("a.json", json + "[\"text\", []]]").substr(0, 40), "a.json:1: row 1001: the label is an arra");
}

TEST_F(LoadRowsTest, RefusesJsonThatIsNoRows) {
  for (const char* file : {"a.json", "a.jsonl"}) {
    EXPECT_EQ(error(file, R"({"items": [{"text": "a"}], "version": 1})"),
              std::string(file) +
                  ":1: row 1: the row has no keys 'text' and 'label' among 'items', 'version'. Pass "
                  "--text-column NAME --label-column NAME.");
  }
  EXPECT_EQ(error("a.jsonl", R"({"review": "goal", "stars": 5, "tags": ["x"]})"),
            "a.jsonl:1: row 1: the row has no keys 'text' and 'label' among 'review', 'stars', 'tags'. Pass "
            "--text-column 'review' --label-column 'stars'.");
  for (const char* row : {R"({"txt": "goal", "tags": []})", R"({"txt": "goal", "tags": [{"begin": 0}]})"}) {
    EXPECT_EQ(error("a.jsonl", row, no_labels()),
              "a.jsonl:1: row 1: the row has no key 'text' among 'txt', 'tags'. Pass --text-column 'txt'.");
  }
  EXPECT_EQ(error("a.json", R"([{"spans": [{"begin": 0}], "id": 1}])", no_labels()),
            "a.json:1: row 1: the row has no key 'text' among 'spans', 'id'. Pass --text-column NAME.");
  EXPECT_THAT(load("a.jsonl", R"({"tags": [1], "text": "a"})", no_labels()).texts, ElementsAre("a"));
  EXPECT_EQ(error("a.json", "  \n"), "a.json: the file has no rows.");
  EXPECT_EQ(error("a.json", "[[\"a\", 0]\n"), "a.json:2: the JSON ends where ',' or ']' is expected.");
  EXPECT_EQ(error("a.json", "[[\"a\", 0]]\nx"), "a.json:2: not valid JSON: more text after its end.");
  EXPECT_EQ(error("a.jsonl", "[\"a\","), "a.jsonl:1: row 1: the JSON ends where a value is expected.");
  EXPECT_EQ(error("a.jsonl", "[\"a\", 0]\n[\"b\", 1] x"), "a.jsonl:2: row 3: not valid JSON: a value expected.");
}

TEST_F(LoadRowsTest, RefusesNestingThatCouldExhaustTheStack) {
  EXPECT_EQ(error("a.json", std::string(1'000'000, '[')), "a.json:1: row 1: JSON nested more than 127 deep.");
  EXPECT_EQ(error("a.jsonl", "\n{\"x\":" + std::string(1'000'000, '[')),
            "a.jsonl:2: row 1: JSON nested more than 127 deep.");
}

TEST_F(LoadRowsTest, RefusesCsvThatIsNotAsItsHeaderSays) {
  EXPECT_EQ(error("a.csv", "\nx,sentence,label\na,0"),
            "a.csv:2: no column 'text' among 'x', 'sentence', 'label'. Pass --text-column 'sentence'.");
  EXPECT_EQ(error("a.csv", "x,sentence,label\na,0", no_labels()),
            "a.csv:1: no column 'text' among 'x', 'sentence', 'label'. Pass --text-column 'sentence'.");
  EXPECT_EQ(error("a.csv", "text\na"), "a.csv:1: no column 'label' among 'text'. Pass --label-column NAME.");
  EXPECT_EQ(error("a.csv", "text,label,text\n"), "a.csv:1: two columns 'text'. Rename one.");
  EXPECT_EQ(error("a.csv", "text,label\na,0\nb, c,1\n"),
            "a.csv:3: row 2: 3 fields where the header names 2. Quote a text that holds a comma, or pass the right "
            "--delimiter.");
  EXPECT_EQ(error("a.tsv", "text\tlabel\na\n"),
            "a.tsv:2: row 1: 1 field where the header names 2. Quote a text that holds a tab, or pass the right "
            "--delimiter.");
  EXPECT_EQ(error("a.csv", "text,label\na,\n"),
            "a.csv:2: row 1: the row has no label. Give it one, or remove the row.");
}

TEST_F(LoadRowsTest, RefusesQuotesThatDoNotClose) {
  EXPECT_EQ(error("a.csv", "text,label\na,0\n\"b,0\nc,0\n"),
            "a.csv:3: a field opens with a double quote that is never closed. Close it, put the text in quotes and "
            "double each quote inside it, or pass --unquoted if quotes are ordinary characters.");
  EXPECT_EQ(error("a.csv", "text,label\n\"a\"c,0\n"),
            "a.csv:2: text after the closing quote of a field; inside quotes, write a quote twice, or pass --unquoted "
            "if quotes are ordinary characters.");
  EXPECT_EQ(error("a.csv", "text,label\n\"a\r\nb\"c,0\n"),
            "a.csv:3: text after the closing quote of a field that opens on line 2; inside quotes, write a quote "
            "twice, or pass --unquoted if quotes are ordinary characters.");
}

TEST_F(LoadRowsTest, RefusesALoneQuoteThatWouldMergeRowsOfATsv) {
  const auto merged = [](int from, int to, int columns) {
    return "a.tsv:" + std::to_string(from) + ": a double quote opens a field here and closes on line " +
           std::to_string(to) + ", but each of these lines has all " + std::to_string(columns) +
           " columns. Put the text in quotes and double each quote inside it, or pass --unquoted if quotes are "
           "ordinary characters.";
  };
  EXPECT_EQ(error("a.tsv", "text\tlabel\nx\t0\n\"\t1\nfoo\t0\n\"\t1\ny\t0\n"), merged(3, 5, 2));
  EXPECT_EQ(error("a.tsv", "label\ttext\n1\t\"hi\n0\tfoo\n\n1\t\"\n"), merged(2, 5, 2));
  EXPECT_EQ(error("a.tsv", "id\ttext\tlabel\r\n1\t\"hi\t0\r\n2\tho\"\t1"), merged(2, 3, 3));
  // Texts in quotes, as pandas and the csv module write them.
  EXPECT_EQ(load("a.tsv", "text\tlabel\n\"a\n\tb\n\"\t1\n\"\"\"\"\t0\n").texts, (Strings{"a\n\tb\n", "\""}));
  EXPECT_EQ(load("a.tsv", "label\ttext\n1\t\"a\nb\"\n").texts, (Strings{"a\nb"}));
  EXPECT_EQ(load("a.tsv", "text\n\"a\nb\"\n", no_labels()).texts, (Strings{"a\nb"}));
  EXPECT_EQ(load("a.csv", "text,label\n\"a, b\nc\",1\n").texts, (Strings{"a, b\nc"}));
}

TEST_F(LoadRowsTest, NeverCrashesOnDamagedFiles) {
  const std::vector<std::pair<std::string, std::string>> files{
      {"a.json", "[[\"a\\u00e9\\ud83d\\ude00\", 1],\n{\"text\": \"b\", \"x\": [1e5, null, true], \"label\": 0}]"},
      {"a.jsonl", "[\"a\", \"x\"]\n{\"text\": \"b\", \"label\": \"y\"}\n"},
      {"a.csv", "id,text,label\r\n1,\"a \"\"b\"\"\nc\",0\r\n2,中文,1\r\n"}};
  static constexpr std::string_view kBytes = "{}[]\",:0123456789\\u-.eE \n\r\t\xff\x80tfn";
  std::mt19937 random(1);
  size_t accepted = 0;
  for (int i = 0; i < 9'000; ++i) {
    auto [file, bytes] = files[i % files.size()];
    for (size_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0: bytes.insert(at, 1, kBytes[random() % kBytes.size()]); break;
        case 1: bytes.erase(at, 1 + random() % 9); break;
        default: bytes[at] = kBytes[random() % kBytes.size()];
      }
    }
    accepted += error(file, bytes, of_kind(static_cast<LabelKind>(i % 4))) == "(nothing was thrown)";
  }
  EXPECT_GT(accepted, 500);
  EXPECT_LT(accepted, 8'000);
}

TEST_F(LoadRowsTest, NeverCrashesOnACutOffFile) {
  const std::string json = "[[\"a\\u00e9\\ud83d\\ude00\", 1],\n{\"text\": \"b\", \"x\": [1e5, null], \"label\": 0}]";
  for (size_t length = 0; length < json.size(); ++length) {
    EXPECT_NE(error("a.json", json.substr(0, length)), "(nothing was thrown)") << length;
  }
}

TEST(LabelMapTest, NamesIntegersAndSortsNames) {
  const auto numbers =
      LabelMap::from_rows({.places = {"", {1, 2, 3}}, .texts = {"", "", ""}, .labels = {id(2), id(0), id(1)}});
  EXPECT_EQ(numbers.names(), (Strings{"0", "1", "2"}));
  const auto names = LabelMap::from_rows(
      {.places = {"", {1, 2, 3}}, .texts = {"", "", ""}, .labels = {name("é"), name("b"), name("B")}});
  EXPECT_EQ(names.names(), (Strings{"B", "b", "é"}));
  EXPECT_EQ(names.id("b"), 1);
  EXPECT_EQ(names.id("c"), std::nullopt);
  EXPECT_EQ(names.name(2), "é");
  EXPECT_EQ(names.size(), 3);
}

LabeledRows labelled(const Labels& labels) {
  LabeledRows rows;
  rows.places.file = "f";
  for (const RawLabel& label : labels) {
    rows.texts.push_back("text " + std::to_string(rows.texts.size()));
    rows.labels.push_back(label);
    rows.places.lines.push_back(static_cast<int64_t>(rows.texts.size()) + 1);
  }
  return rows;
}

TEST(WordLabelsTest, RefusesOneTextThatMakesTheMatrixHuge) {
  const ScratchFolder none;
  const LabelMap labels = LabelMap::from_names({"a"});
  Labels texts(500, Strings{"a"});
  texts[7] = Strings(10'000, "a");
  EXPECT_EQ(word_label_ids(labelled(texts), labels).sizes(), (at::IntArrayRef{500, 10'000}));
  texts.resize(100'000, Strings{"a"});
  EXPECT_EQ(value_error([&] { word_label_ids(labelled(texts), labels); }, none),
            "f:9: row 8: this text is too long. It has 10000 of the 109999 words of all 100000 texts. If it is several "
            "texts, "
            "split it. If not, leave it out.");
}

Strings classes_of(const std::vector<std::string>& labels) {
  Labels raw;
  for (const std::string& label : labels) raw.push_back(name(label));
  return LabelMap::from_rows(labelled(raw)).names();
}

TEST(LabelMapTest, MakesClassesOfAnyValues) {
  EXPECT_EQ(classes_of({"5", "1", "3", "1"}), (Strings{"1", "3", "5"}));
  EXPECT_EQ(classes_of({"10", "9", "-1"}), (Strings{"-1", "9", "10"}));  // by value, not by bytes
  EXPECT_EQ(classes_of({"2.0", "0.5", "1e1"}), (Strings{"0.5", "2.0", "1e1"}));
  EXPECT_EQ(classes_of({"True", "False"}), (Strings{"False", "True"}));
  EXPECT_EQ(classes_of({"10", "9", "x"}), (Strings{"10", "9", "x"}));
  EXPECT_EQ(classes_of({"10", "007", "07"}), (Strings{"007", "07", "10"}));  // codes, not numbers
  // One class for each value, as it is written first.
  EXPECT_EQ(classes_of({"1.0", "1", "0", "-0", "true"}), (Strings{"0", "1.0", "true"}));
  EXPECT_EQ(classes_of({"TRUE", "true", "false"}), (Strings{"TRUE", "false"}));
  // Beyond the whole numbers that a double represents exactly.
  EXPECT_EQ(classes_of({"9007199254740993", "9007199254740992"}).size(), 2u);
}

TEST(LabelMapTest, RefusesMissingValuesWithTheirRow) {
  const ScratchFolder none;
  const auto error = [&](const std::vector<std::string>& labels) {
    return value_error([&] { classes_of(labels); }, none);
  };
  const auto missing = [](const std::string& label) {
    return "f:3: row 2: the label '" + label +
           "' is a missing value. Give the row a label, remove it, or name all labels with --labels.";
  };
  for (const char* label : {"nan", "NaN"}) {
    EXPECT_EQ(error({"1", label, "2"}), missing(label));
    EXPECT_EQ(error({"joy", label, "fear"}), missing(label));
  }
  for (const char* label : {"None", "null", "NA", "<NA>", "N/A"}) {
    EXPECT_EQ(error({"1", label, "2"}), missing(label));
    EXPECT_EQ(classes_of({"joy", label}).size(), 2u);  // a name as others are
  }
  const LabelMap languages = LabelMap::from_names({"nan", "yue"});  // as ISO 639-3 has it
  EXPECT_EQ(label_ids(labelled({name("nan")}), languages)[0].item<int64_t>(), 0);
  EXPECT_EQ(value_error([&] { label_ids(labelled({name("yue"), name("NaN")}), languages); }, none),
            "f:3: row 2: the label 'NaN' is a missing value. Give the row a label, or remove it.");
}

TEST(LabelMapTest, FindsOtherSpellings) {
  const LabelMap stars = LabelMap::from_names({"1", "2.0", "True"});
  EXPECT_EQ(stars.id("1.0"), 0);
  EXPECT_EQ(stars.id("2"), 1);
  EXPECT_EQ(stars.id("true"), 2);
  EXPECT_EQ(stars.id("01"), std::nullopt);
  const LabelMap both = LabelMap::from_names({"1", "1.0"});  // a model of another program
  EXPECT_EQ(both.id("1.0"), 1);
}

TEST(LabelMapTest, RefusesIdentifiersForLabels) {
  const ScratchFolder none;
  Labels labels;
  for (int i = 0; i <= LabelMap::kMaxLabels; ++i) labels.push_back(name("user " + std::to_string(i)));
  EXPECT_EQ(value_error([&] { LabelMap::from_rows(labelled(labels)); }, none),
            "f: has 100001 different labels, at most 100000 can be trained. Are these labels, or identifiers?");
}

TEST(LabelMapTest, RefusesBadNames) {
  const ScratchFolder none;
  EXPECT_EQ(value_error([] { LabelMap::from_names({}); }, none),
            "LabelMap: at least one label name expected, got none.");
  EXPECT_EQ(value_error([] { LabelMap::from_names({"a", ""}); }, none), "LabelMap: a label name is empty.");
  EXPECT_EQ(value_error([] { LabelMap::from_names({"a", "a"}); }, none), "LabelMap: two labels are named 'a'.");
  EXPECT_EQ(value_error([] { LabelMap::from_rows({.places = {"f", {7}}, .texts = {""}, .labels = {kNone}}); }, none),
            "f:7: row 1: the row has no label. Give it one, or remove the row.");
}

std::vector<int64_t> to_vector(const at::Tensor& ids) {
  return {ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel()};
}

TEST(LabelIdsTest, GivesEachRowItsId) {
  const LabelMap labels = LabelMap::from_names({"sad", "1", "0"});
  const auto ids = label_ids(
      {.places = {"f", {1, 2, 3}}, .texts = {"a", "b", "c"}, .labels = {name("0"), name("sad"), name("1")}}, labels);
  EXPECT_THAT(to_vector(ids), ElementsAre(2, 0, 1));
  const LabelMap names = LabelMap::from_names({"joy", "anger"});
  EXPECT_THAT(to_vector(label_ids({.places = {"f", {1}}, .texts = {"a"}, .labels = {id(1)}}, names)), ElementsAre(1));
}

TEST(LabelIdsTest, RefusesLabelsItDoesNotKnowAndListsThose) {
  const ScratchFolder none;
  const auto error = [&](const RawLabel& label, const LabelMap& labels) {
    return value_error(
        [&] {
          label_ids({.places = {"f", {3, 9}},
                     .texts = {"", ""},
                     .labels = {label == id(2) ? id(0) : name(labels.name(0)), label}},
                    labels);
        },
        none);
  };
  const LabelMap labels = LabelMap::from_names({"joy", "anger"});
  EXPECT_EQ(error(name("fear"), labels), "f:9: row 2: unknown label 'fear'. The labels are: joy, anger.");
  EXPECT_EQ(error(id(2), labels), "f:9: row 2: unknown label '2'. The labels, numbered from 0, are: joy, anger.");
  EXPECT_EQ(error(kNone, labels), "f:9: row 2: the row has no label. Give it one, or remove the row.");
  const std::string other_kind =
      "f:9: row 2: the label is of another kind than the task's. Read the file for this task.";
  EXPECT_EQ(error(1.5, labels), other_kind);
  EXPECT_EQ(error(Strings{"joy"}, labels), other_kind);
  const LabeledRows mixed{.places = {"f", {3, 9}}, .texts = {"", ""}, .labels = {Strings{"joy"}, name("joy")}};
  EXPECT_EQ(value_error([&] { label_flags(mixed, labels); }, none), other_kind);
  const LabeledRows numbers{.places = {"f", {3, 9}}, .texts = {"", ""}, .labels = {name("joy"), 1.5}};
  EXPECT_EQ(value_error([&] { LabelMap::from_rows(numbers); }, none), other_kind);
  EXPECT_EQ(value_error([&] { split_names("a,,b", "--labels"); }, none),
            "--labels 'a,,b' has an empty name; remove a comma");
  EXPECT_THAT(split_names("a,\"b, c\",d e", ""), ElementsAre("a", "b, c", "d e"));
  EXPECT_TRUE(split_names("", "").empty());
  Strings many;
  for (int i = 0; i < 25; ++i) many.push_back(std::to_string(i));
  EXPECT_EQ(
      error(name("x"), LabelMap::from_names(many)),
      "f:9: row 2: unknown label 'x'. The labels are: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, "
      "18, 19, … (25 in all).");
}

Dataset numbered(int64_t size) {
  Dataset dataset;
  for (int64_t i = 0; i < size; ++i) {
    dataset.texts.push_back(std::to_string(i));
  }
  dataset.targets = at::arange(size);
  return dataset;
}

TEST(SplitDatasetTest, GivesEveryRowToOnePartTheSameWayEveryTime) {
  const auto [train, dev] = split_dataset(numbered(1000), 0.08, 123);
  EXPECT_EQ(train.size(), 920);
  EXPECT_EQ(dev.size(), 80);
  const auto of_train = to_vector(train.targets), of_dev = to_vector(dev.targets);
  std::set<int64_t> seen(of_train.begin(), of_train.end());
  seen.insert(of_dev.begin(), of_dev.end());
  EXPECT_EQ(seen.size(), 1000);
  for (int64_t i = 0; i < dev.size(); ++i) EXPECT_EQ(dev.texts[i], std::to_string(of_dev[i]));
  EXPECT_EQ(to_vector(split_dataset(numbered(1000), 0.08, 123).second.targets), of_dev);
  EXPECT_NE(to_vector(split_dataset(numbered(1000), 0.08, 124).second.targets), of_dev);
}

TEST(SplitDatasetTest, RefusesAnEmptyPart) {
  const ScratchFolder none;
  const auto error = [&](int64_t rows, double ratio) {
    return value_error([&] { split_dataset(numbered(rows), ratio, 1); }, none);
  };
  EXPECT_EQ(error(5, 0.08),
            "split_dataset: a ratio of 0.08 leaves one part of 5 rows empty. Use more rows or another ratio.");
  EXPECT_EQ(error(1, 0.5),
            "split_dataset: a ratio of 0.5 leaves one part of 1 rows empty. Use more rows or another ratio.");
  EXPECT_EQ(error(5, 1.5), "split_dataset: ratio must be between 0 and 1, got 1.5.");
  EXPECT_EQ(error(5, std::nan("")), "split_dataset: ratio must be between 0 and 1, got nan.");
}

}  // namespace
}  // namespace mezzo::text
