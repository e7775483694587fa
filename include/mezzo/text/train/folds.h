#pragma once

#include "mezzo/cpp20.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/distributed/group/process_group.h"
#include "mezzo/text/train/train_config.h"

namespace mezzo::text {

/// What a model of a cross-validation came to on the texts that it was not trained on, or on test.
struct FoldScores {
  std::vector<std::pair<std::string, double>> values;  ///< loss and metrics, by name
};

struct FoldsResult {
  bool finished = false;      ///< false: stopped on request
  bool saves_failed = false;  ///< a checkpoint in between could not be written
  std::vector<FoldScores> folds;

  /// Over the folds, by name, as `folds` have them.
  FoldScores mean() const;
  /// Of a sample, with N - 1; 0 where there is one fold.
  FoldScores standard_deviation() const;
  /// A line for each fold and these two, for people.
  std::string table() const;
};

/// Cross-validation: trains the model of each of `config.folds`, as train() does, into OUTPUT/fold-1, -2, …, and writes
/// OUTPUT/folds.json, of the scores on dev or, where there is one, on test. With `config.resume` "auto" folds that have
/// finished are not trained again.
/// @param config  with `fold` 0. Parameters, ranks and errors as of train().
/// @throws c10::ValueError  also for a fold that has finished with other settings.
FoldsResult train_folds(TrainConfig config,
                        const std::function<bool()>& stop_requested,
                        distributed::ProcessGroup* group = nullptr);

}  // namespace mezzo::text
