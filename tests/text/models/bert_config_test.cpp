#include "mezzo/text/models/bert_config.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mezzo/text/models/model_for_task.h"
#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class BertConfigTest : public testing::Test {
 protected:
  std::string error(std::string_view config_json) {
    return value_error([&] { ModelConfig::from_file(folder_.write("config.json", config_json)); }, folder_);
  }

  const ScratchFolder folder_;
};

TEST_F(BertConfigTest, NamesTheFileAndLineOfBadJson) {
  EXPECT_EQ(error("{\n\"layer_norm_eps\": 1e999}"), "config.json:2: a number too large for a double.");
  EXPECT_EQ(error("{\"x\": " + std::string(1'000'000, '[')), "config.json:1: JSON nested more than 127 deep.");
  EXPECT_EQ(error("{\"hidden_size\": 768"), "config.json:1: the JSON ends where ',' or '}' is expected.");
  EXPECT_EQ(error("[]"), "config.json: the file holds a JSON array, not an object.");
  EXPECT_EQ(error({"{\0}\0", 4}),
            "config.json: the file is not text in UTF-8: it has zero bytes, as UTF-16 has. Save it as UTF-8.");
  EXPECT_THAT(error("{\"hidden_size\": 1e300}"), StartsWith("config.json: hidden_size is 1e+300, expected an integer"));
}

TEST_F(BertConfigTest, RefusesAFileThatNamesNoModel) {
  EXPECT_EQ(error("{}"),
            "config.json: has no model_type. Add the model's, one of bert, camembert, deberta-v2, distilbert, electra, "
            "modernbert, roberta, xlm-roberta.");
  EXPECT_EQ(ModelConfig::from_file(folder_.write("config.json", R"({"hidden_size": 24})"))->model_type(), "bert");
}

TEST_F(BertConfigTest, KeepsTheNamesOfManyLabelsInOrder) {
  BertConfig config;
  for (int i = 0; i < 50'000; ++i) config.label_names.push_back("label " + std::to_string(i));
  config.save(folder_ / "config.json");  // in linear time: a search for each name among all would take minutes
  EXPECT_EQ(ModelConfig::from_file(folder_ / "config.json")->label_names, config.label_names);
  const std::string text = ScratchFolder::read(folder_ / "config.json");
  EXPECT_THAT(text, HasSubstr("\"id2label\": {\n    \"0\": \"label 0\",\n    \"1\": \"label 1\",\n    \"2\": "));
  EXPECT_EQ(nlohmann::json::parse(text)["label2id"]["label 49999"], 49'999);
}

TEST_F(BertConfigTest, NamesTransformersClassForItsProblemType) {
  BertConfig config;
  config.save(folder_ / "config.json");
  const auto saved = nlohmann::json::parse(ScratchFolder::read(folder_ / "config.json"));
  EXPECT_EQ(saved["architectures"], nlohmann::json({"BertForSequenceClassification"}));
  config.problem_type = "chess";
  EXPECT_EQ(
      value_error([&] { config.save(folder_ / "config.json"); }, folder_),
      "problem_type is \"chess\", mezzo supports: single_label_classification, multi_label_classification, regression, "
      "token_classification");
}

TEST(MakeModelTest, WantsANameForEachOutputOrNoneAtAll) {
  const ScratchFolder none;
  BertConfig config;
  config.vocab_size = config.hidden_size = config.intermediate_size = config.max_position_embeddings = 4;
  config.num_hidden_layers = config.num_attention_heads = 1;
  EXPECT_EQ(make_model(config, {.num_outputs = 3})->head().num_outputs, 3);
  config.label_names = {"law", "goal"};
  EXPECT_EQ(make_model(config, {.num_outputs = 2})->head().num_outputs, 2);
  EXPECT_EQ(value_error([&] { make_model(config, {.num_outputs = 3}); }, none),
            "make_model: the config names 2 labels, but the head has 3 outputs; give label_names a name for each "
            "output, or none at all");
}

}  // namespace
}  // namespace mezzo::text
