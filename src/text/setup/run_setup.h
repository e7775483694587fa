#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "mezzo/text/data/batching.h"
#include "mezzo/text/data/dataset.h"
#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/models/precision.h"
#include "mezzo/text/setup/train_config.h"
#include "mezzo/text/tasks/task.h"
#include "mezzo/text/tokenizers/tokenizer.h"
#include "text/setup/ranks.h"

namespace mezzo::text {

/// What training starts from: read, checked, tokenized and on its device.
struct RunSetup {
  c10::Device device;
  Precision precision;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const Task> task;
  TokenizedTexts train, dev, test;  ///< dev and test may be empty
  std::shared_ptr<ModelForTask> model;
  std::vector<std::string> notes;         ///< for the user: sizes, what was initialised, what was cut
  Texts dev_texts = {}, test_texts = {};  ///< as people read them
  std::vector<std::vector<std::string>> dev_words = {}, test_words = {};  ///< in their place, where words are given
};

/// The tokens that texts are cut to where --max-length does not say.
int64_t default_max_length(const ModelConfig& model);

/// @param config  whose `max_length` is given its default.
/// @throws c10::ValueError  for settings or files that are wrong
RunSetup set_up_run(TrainConfig& config, const Ranks& ranks);

}  // namespace mezzo::text
