#include "mezzo/text/tokenizers/tokenizer.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <regex.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const std::vector<std::string> kVocab = {"[PAD]", "[UNK]",  "[CLS]", "[SEP]", "[MASK]", "hello", "un",
                                         "##aff", "##able", "##a",   "a",     ",",      "漢",    "cafe"};
enum Id : int32_t { kPad, kUnk, kCls, kSep, kMask, kHello, kUn, kAff, kAble, kInnerA, kA, kComma, kHan, kCafe };

json wordpiece_document() {
  json vocab;
  for (size_t i = 0; i < kVocab.size(); ++i) vocab[kVocab[i]] = i;
  const auto special = [](const char* id, int type) { return json{{"SpecialToken", {{"id", id}, {"type_id", type}}}}; };
  const auto sequence = [](const char* id, int type) { return json{{"Sequence", {{"id", id}, {"type_id", type}}}}; };
  const json single = {special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0)};
  json pair = single;
  pair.push_back(sequence("B", 1));
  pair.push_back(special("[SEP]", 1));
  return {{"added_tokens",
           {{{"id", 3}, {"content", "[SEP]"}, {"special", true}, {"normalized", false}},
            {{"id", 14}, {"content", "<new>"}, {"rstrip", true}, {"normalized", false}}}},
          {"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", true},
            {"handle_chinese_chars", true},
            {"strip_accents", nullptr},
            {"lowercase", true}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", single},
            {"pair", pair},
            {"special_tokens", {{"[CLS]", {{"ids", {2}}}}, {"[SEP]", {{"ids", {3}}}}}}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100},
            {"vocab", vocab}}}};
}

/// A separate folder for each test, with the files that the test writes.
class TokenizerTest : public testing::Test {
 protected:
  TokenizerTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / (std::string("mezzo_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~TokenizerTest() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  fs::path write_vocab(const std::vector<std::string>& tokens = kVocab) const {
    std::string bytes;
    for (const std::string& token : tokens) bytes += token + "\n";
    return write("vocab.txt", bytes);
  }
  /// Of BERT, by a vocab.txt.
  std::shared_ptr<const Tokenizer> tokenizer(const json& config = json::object()) const {
    write_vocab();
    write("tokenizer_config.json", config.dump());
    return Tokenizer::from_pretrained(folder_);
  }
  /// The first line of what loading the folder throws.
  std::string load_error() const {
    try {
      Tokenizer::from_pretrained(folder_);
    } catch (const c10::ValueError& error) {
      return error.msg();
    }
    return "loaded";
  }
  std::string json_error(const std::function<void(json&)>& change) const {
    json document = wordpiece_document();
    change(document);
    write("tokenizer.json", document.dump());
    write("tokenizer_config.json", R"({"tokenizer_class": "BertTokenizer"})");
    return load_error();
  }

  fs::path folder_;
};

TEST_F(TokenizerTest, SplitsWordsIntoTheLongestPieces) {
  EXPECT_THAT(tokenizer()->encode("Hello, unaffable").input_ids,
              ElementsAre(kCls, kHello, kComma, kUn, kAff, kAble, kSep));
  EXPECT_THAT(tokenizer()->encode("unhello").input_ids, ElementsAre(kCls, kUnk, kSep)) << "no piece for ##hello";
}

TEST_F(TokenizerTest, CleansStripsAccentsLowerCasesAndSeparatesChinese) {
  EXPECT_THAT(tokenizer()->encode("CAFÉ\tcafe\u0301 a漢a\u200d").input_ids,
              ElementsAre(kCls, kCafe, kCafe, kA, kHan, kA, kSep));
  EXPECT_THAT(tokenizer({{"do_lower_case", false}})->encode("Hello hello café").input_ids,
              ElementsAre(kCls, kUnk, kHello, kUnk, kSep));
  EXPECT_THAT(tokenizer({{"do_lower_case", false}, {"strip_accents", true}})->encode("café").input_ids,
              ElementsAre(kCls, kCafe, kSep));
  EXPECT_THAT(tokenizer({{"tokenize_chinese_chars", false}})->encode("a漢").input_ids, ElementsAre(kCls, kUnk, kSep));
}

TEST_F(TokenizerTest, FindsSpecialTokensInTheTextInTheirExactCase) {
  EXPECT_THAT(tokenizer()->encode("hello[SEP]a [mask]").input_ids,
              ElementsAre(kCls, kHello, kSep, kA, kUnk, kUnk, kUnk, kSep));
}

TEST_F(TokenizerTest, TakesAWordOfMoreThan100CodePointsForUnknown) {
  const std::string inside(99, 'a');
  EXPECT_EQ(tokenizer()->encode("a" + inside).input_ids.size(), 2u + 100u);
  EXPECT_THAT(tokenizer()->encode("aa" + inside).input_ids, ElementsAre(kCls, kUnk, kSep));
}

TEST_F(TokenizerTest, ReadsInvalidUtf8AsReplacementCharacters) {
  EXPECT_THAT(tokenizer()->encode("hel\xFFlo \xE6\xBC").input_ids, ElementsAre(kCls, kHello, kSep));
}

TEST_F(TokenizerTest, TruncatesToMaxLengthAndSaysSo) {
  const Encoding whole = tokenizer()->encode("a a a", 5);
  EXPECT_THAT(whole.input_ids, ElementsAre(kCls, kA, kA, kA, kSep));
  EXPECT_FALSE(whole.truncated);
  const Encoding cut = tokenizer()->encode("a unaffable", 4);
  EXPECT_THAT(cut.input_ids, ElementsAre(kCls, kA, kUn, kSep));
  EXPECT_THAT(cut.token_type_ids, ElementsAre(0, 0, 0, 0));
  EXPECT_TRUE(cut.truncated);
}

TEST_F(TokenizerTest, ShortensTheLongerOfAPairFirst) {
  const Encoding encoding = tokenizer()->encode("hello", "a a a a", 6);
  EXPECT_THAT(encoding.input_ids, ElementsAre(kCls, kHello, kSep, kA, kA, kSep));
  EXPECT_THAT(encoding.token_type_ids, ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_TRUE(encoding.truncated);
}

TEST_F(TokenizerTest, RefusesAMaxLengthWithoutRoomForTheSpecialTokens) {
  try {
    tokenizer()->encode("a", 1);
    FAIL() << "no error";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.msg(), HasSubstr("a text has 2 special tokens. Pass at least 2"));
  }
  EXPECT_THROW(tokenizer()->encode("a", "a", 2), c10::ValueError);
}

TEST_F(TokenizerTest, KnowsItsTokens) {
  const auto loaded = tokenizer();
  EXPECT_EQ(loaded->vocab_size(), 14);
  EXPECT_EQ(loaded->token(kHan), "漢");
  EXPECT_EQ(loaded->pad_id(), kPad);
  EXPECT_THROW(loaded->token(14), c10::ValueError);
  EXPECT_THROW(loaded->token(-1), c10::ValueError);
}

TEST_F(TokenizerTest, ReadsTokenizerJsonWithItsAddedTokens) {
  write("tokenizer.json", wordpiece_document().dump());
  const auto loaded = Tokenizer::from_pretrained(folder_);
  EXPECT_THAT(loaded->encode("hello<new>  a[SEP]").input_ids, ElementsAre(kCls, kHello, 14, kA, kSep, kSep));
  EXPECT_EQ(loaded->vocab_size(), 15);
}

TEST_F(TokenizerTest, SavesWhatItLoads) {
  write("tokenizer.json", wordpiece_document().dump());
  const auto loaded = Tokenizer::from_pretrained(folder_);
  fs::create_directory(folder_ / "copy");
  loaded->save(folder_ / "copy");
  const char* text = "Hello<new>  unaffable[SEP] café";
  EXPECT_EQ(Tokenizer::from_pretrained(folder_ / "copy")->encode(text).input_ids, loaded->encode(text).input_ids);
  EXPECT_THROW(loaded->save(folder_ / "absent"), c10::ValueError);
}

TEST_F(TokenizerTest, KeepsTheLengthTheModelWasTrainedWith) {
  write("tokenizer.json", wordpiece_document().dump());
  const auto reloaded = [&] { return Tokenizer::from_pretrained(folder_)->model_max_length(); };
  EXPECT_EQ(reloaded(), 0);
  Tokenizer::from_pretrained(folder_)->save(folder_, TokenizerSaveOptions().model_max_length(64));
  EXPECT_EQ(reloaded(), 64);
  Tokenizer::from_pretrained(folder_)->save(folder_);
  EXPECT_EQ(reloaded(), 64);
  write("tokenizer_config.json", R"({"model_max_length": 1000000000000000019884624838656})");
  EXPECT_EQ(reloaded(), 0);
}

TEST_F(TokenizerTest, SavesPartsThatNoClassOfTransformersMakes) {
  json document = wordpiece_document();
  document["model"]["max_input_chars_per_word"] = 2;
  document["model"]["continuing_subword_prefix"] = "@";
  document["normalizer"]["clean_text"] = false;
  write("tokenizer.json", document.dump());
  fs::create_directory(folder_ / "copy");
  Tokenizer::from_pretrained(folder_)->save(folder_ / "copy");
  EXPECT_THAT(Tokenizer::from_pretrained(folder_ / "copy")->encode("a un hello").input_ids,
              ElementsAre(kCls, kA, kUn, kUnk, kSep));
}

TEST_F(TokenizerTest, NamesTheFileAndTheMissingToken) {
  write_vocab({"[PAD]", "[UNK]", "[CLS]", "[MASK]", "a"});
  EXPECT_THAT(load_error(),
              StartsWith((folder_ / "vocab.txt").string() + ": the vocabulary lacks the token \"[SEP]\""));
}

TEST_F(TokenizerTest, RefusesAFileThatIsNoVocabulary) {
  const std::string vocab = (folder_ / "vocab.txt").string();
  write("vocab.txt", "{\n\"text\": \"a\",\n\"label\": 0}\n");
  EXPECT_EQ(load_error(), vocab +
                              ": the vocabulary lacks the tokens \"[UNK]\", \"[SEP]\", \"[PAD]\", \"[CLS]\", "
                              "\"[MASK]\"; is it that of a BERT model, one token a line?");
  write("vocab.txt", "[PAD]\n" + std::string(3'000'000, 'x') + "\n");
  EXPECT_EQ(load_error(), vocab +
                              ":2: a token of 3000000 bytes; at most 1000 make one. Is this the vocabulary of a "
                              "BERT model?");
  const std::string long_token(1001, 'x');
  EXPECT_THAT(json_error([&](json& d) { d["model"]["vocab"][long_token] = 99; }),
              HasSubstr("tokenizer.json: model.vocab: a token of 1001 bytes"));
  EXPECT_THAT(json_error([&](json& d) { d["added_tokens"][1]["content"] = long_token; }),
              HasSubstr("tokenizer.json: added_tokens[1]: a token of 1001 bytes"));
}

TEST_F(TokenizerTest, LooksAtWhiteSpaceOnceHoweverManyTokensTakeIt) {
  // A token that is a space itself and takes the spaces around it: looking at all of them
  // for each would take hours.
  json document = wordpiece_document();
  document["added_tokens"].push_back(
      {{"id", 15}, {"content", " "}, {"normalized", false}, {"lstrip", true}, {"rstrip", true}});
  write("tokenizer.json", document.dump());
  const auto loaded = Tokenizer::from_pretrained(folder_);
  EXPECT_EQ(loaded->encode("a  a").input_ids, loaded->encode("a " + std::string(3'000'000, ' ') + "a").input_ids);
}

TEST_F(TokenizerTest, NamesTheFileAndLineThatIsNotUtf8) {
  write("vocab.txt", "[PAD]\n\xFF\n");
  EXPECT_THAT(load_error(), StartsWith((folder_ / "vocab.txt").string() + ":2: not UTF-8"));
}

TEST_F(TokenizerTest, RefusesFilesOfOtherTokenizersByName) {
  EXPECT_THAT(load_error(), HasSubstr("neither tokenizer.json nor vocab.txt is there"));
  EXPECT_THAT(json_error([](json& d) { d["model"]["type"] = "BPE"; }),
              StartsWith((folder_ / "tokenizer.json").string() +
                         ": its model is \"BPE\", and the class BertTokenizer needs a WordPiece model"));
  EXPECT_THAT(json_error([](json& d) { d["normalizer"]["type"] = "NFC"; }),
              HasSubstr(": its normalizer is \"NFC\", and the class BertTokenizer needs a BertNormalizer."));
  EXPECT_THAT(json_error([](json& d) { d["normalizer"] = nullptr; }),
              HasSubstr(": its normalizer is nothing, and the class BertTokenizer needs a BertNormalizer. If the file "
                        "is right, set tokenizer_class of "
                        "tokenizer_config.json to PreTrainedTokenizerFast, which takes the whole file"));
  EXPECT_THAT(json_error([](json& d) { d["pre_tokenizer"]["type"] = "Whitespace"; }),
              HasSubstr(": its pre_tokenizer is \"Whitespace\", and the class BertTokenizer needs a BertPreTokenizer"));
  EXPECT_THAT(json_error([](json& d) { d["post_processor"]["type"] = "RobertaProcessing"; }),
              HasSubstr(": its post_processor is \"RobertaProcessing\", and the class BertTokenizer needs a "
                        "TemplateProcessing or BertProcessing"));
}

TEST_F(TokenizerTest, RefusesBrokenTokenizerJson) {
  write("tokenizer.json", std::string(1 << 20, '['));
  EXPECT_THAT(load_error(), HasSubstr("tokenizer.json:1: JSON nested more than 127 deep"));
  write("tokenizer.json", "{\n\"a\" 1}");
  EXPECT_THAT(load_error(), HasSubstr("tokenizer.json:2: not valid JSON: ':' expected"));
  EXPECT_THAT(json_error([](json& d) { d["model"]["vocab"]["hello"] = -1; }),
              HasSubstr(": model.vocab[\"hello\"] must be an id, a whole number from 0, got -1"));
  EXPECT_THAT(json_error([](json& d) { d["model"]["vocab"]["hello"] = 1; }), HasSubstr("ids must be distinct"));
  EXPECT_THAT(json_error([](json& d) { d["model"]["vocab"].erase("[CLS]"); }), HasSubstr("lacks the token \"[CLS]\""));
  EXPECT_THAT(json_error([](json& d) { d["added_tokens"][1]["id"] = 9; }), HasSubstr("is listed with the id 9"));
  EXPECT_THAT(json_error([](json& d) {
                for (const char* content : {"Foo", "foo"}) {
                  d["added_tokens"].push_back({{"id", 15}, {"content", content}});
                }
                d["added_tokens"][3]["id"] = 16;
              }),
              HasSubstr("\"Foo\" and \"foo\" are equal once normalized"));
}

TEST_F(TokenizerTest, NamesTheFileAndLineOfJsonThatNoReaderHolds) {
  write_vocab();
  const std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    write(file, "{\n\"mask_token\": " + deep + "}");
    EXPECT_THAT(load_error(), StartsWith((folder_ / file).string() + ":2: JSON nested more than 127 deep"));
    write(file, "{\n\n\"x\": 1e999}");
    EXPECT_THAT(load_error(), StartsWith((folder_ / file).string() + ":3: a number too large for a double"));
    write(file, "{}");
  }
}

TEST_F(TokenizerTest, NamesTheFileThatHasTheSpecialToken) {
  write_vocab();
  write("special_tokens_map.json", R"({"mask_token": 7})");
  EXPECT_THAT(load_error(), StartsWith((folder_ / "special_tokens_map.json").string() + ": mask_token"));
  write("special_tokens_map.json", R"({"additional_special_tokens": [[]]})");
  EXPECT_THAT(load_error(), StartsWith((folder_ / "special_tokens_map.json").string() + ": additional_special_tokens"));
}

TEST_F(TokenizerTest, RefusesOrLoadsMutatedFilesAndNeverCrashes) {
  std::mt19937 random(1);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  std::string vocab;
  for (const std::string& token : kVocab) vocab += token + "\n";
  const std::vector<std::pair<std::string, std::string>> originals = {
      {"tokenizer.json", wordpiece_document().dump()},
      {"vocab.txt", vocab},
      {"tokenizer_config.json",
       R"({"do_lower_case":true,"strip_accents":null,"added_tokens_decoder":{"14":{"content":"<new>","rstrip":true}},)"
       R"("extra_special_tokens":["a"],"mask_token":{"content":"[MASK]"},"tokenizer_class":"BertTokenizer"})"}};
  const std::vector<std::string> inserts = {"null", "[]",   "{}", "-1",    "4294967296",
                                            "\"",   "\xFF", "\n", "1e400", "[[[["};
  int loaded = 0;
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    const size_t victim = below(originals.size());
    fs::remove(folder_ / "tokenizer.json");
    fs::remove(folder_ / "tokenizer_config.json");
    write("vocab.txt", vocab);
    std::string bytes = originals[victim].second;
    for (size_t count = 1 + below(3); count > 0 && !bytes.empty(); --count) {
      const size_t at = below(bytes.size());
      switch (below(4)) {
        case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); break;
        case 1: bytes.insert(at, inserts[below(inserts.size())]); break;
        case 2: bytes.erase(at, 1 + below(8)); break;
        default: bytes.erase(at); break;
      }
    }
    write(originals[victim].first, bytes);
    try {
      const auto tokenizer = Tokenizer::from_pretrained(folder_);
      for (const char* text : {"Hello, unaffable<new>  café 漢[SEP]", "\xF0\x9F", ""}) tokenizer->encode(text, 6);
      ++loaded;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.msg(), StartsWith(folder_.string()));
      ++refused;
    }
  }
  EXPECT_GT(loaded, 50);
  EXPECT_GT(refused, 300);
}

TEST_F(TokenizerTest, EncodesAnyBytes) {
  std::mt19937 random(2);
  const auto loaded = tokenizer();
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 24, '\0');
    for (char& c : text) c = static_cast<char>(random());
    const Encoding encoding = loaded->encode(text, 8);
    ASSERT_LE(encoding.input_ids.size(), 8u);
    ASSERT_EQ(encoding.input_ids.size(), encoding.token_type_ids.size());
  }
}

TEST_F(TokenizerTest, ServesManyThreads) {
  const auto loaded = tokenizer();
  const std::string text = "Hello, unaffable café [SEP] 漢 가 \u302e\u0301";
  const auto expected = loaded->encode(text).input_ids;
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (int& count : equal) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) count += loaded->encode(text).input_ids == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ElementsAre(2000, 2000, 2000, 2000));
}

TEST_F(TokenizerTest, LeavesAProgramTheRegularExpressionsOfTheCLibrary) {
  regex_t regex;
  ASSERT_EQ(regcomp(&regex, "^(a|b)+x{2}$", REG_EXTENDED), 0);
  EXPECT_EQ(regexec(&regex, "ababxx", 0, nullptr, 0), 0) << "Oniguruma's function reads the flags of the C library";
  regfree(&regex);
}

}  // namespace
}  // namespace mezzo::text
