#include "mezzo/text/models/pretrained.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "mezzo/text/io/safetensors.h"
#include "mezzo/text/models/bert_config.h"
#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

struct OfAnotherFamily : BertConfig {
  std::string_view head_prefix() const override { return "score"; }
};

TEST(PretrainedTest, AFolderHasAHeadWhereItsFamilysHasATensor) {
  const ScratchFolder folder;
  const auto holds_head = [&](const ModelConfig& config, const std::string& name) {
    save_safetensors(folder / "model.safetensors",
                     {{"bert.embeddings.word_embeddings.weight", at::ones({2})}, {name, at::ones({2})}}, {});
    return has_head(config, folder.path());
  };
  EXPECT_TRUE(holds_head(BertConfig(), "classifier.weight"));
  EXPECT_FALSE(holds_head(BertConfig(), "bert.pooler.dense.weight"));
  EXPECT_FALSE(holds_head(BertConfig(), "cls.predictions.bias")) << "of another task";
  EXPECT_FALSE(holds_head(BertConfig(), "classifier_dropout"));
  EXPECT_TRUE(holds_head(OfAnotherFamily(), "score.weight"));
  EXPECT_FALSE(holds_head(OfAnotherFamily(), "classifier.weight"));
}

}  // namespace
}  // namespace mezzo::text
