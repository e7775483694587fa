#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "mezzo/text/data/batching.h"
#include "mezzo/text/data/dataset.h"
#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/models/precision.h"
#include "mezzo/text/tasks/task.h"
#include "mezzo/text/tokenizers/tokenizer.h"
#include "mezzo/text/train/train_config.h"
#include "text/train/ranks.h"

namespace mezzo::text {

/// Texts for people.
struct ReadableTexts {
  Texts texts = {};                                  ///< pairs as one
  std::vector<std::vector<std::string>> words = {};  ///< in place of texts, if words are given
  RowPlaces places = {};
};

/// What training starts from: read, checked, tokenized and on its device.
struct RunSetup {
  c10::Device device;
  Precision precision;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const Task> task;
  TokenizedTexts train, dev, test;  ///< dev and test may be empty
  std::shared_ptr<ModelForTask> model;
  std::vector<std::string> notes;        ///< for the user: sizes, initialised weights, truncated texts
  std::set<std::string> automatic = {};  ///< names of the settings that were left to the program
  ReadableTexts dev_readable = {}, test_readable = {};
  bool reads_pairs = false;
};

/// @param config  is given its defaults of `max_length`, `learning_rate` and `warmup_ratio`
/// @throws c10::ValueError  for settings or files that are wrong
RunSetup set_up_run(TrainConfig& config, const Ranks& ranks);

}  // namespace mezzo::text
