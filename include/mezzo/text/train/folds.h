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

/// The scores of one model of a cross-validation, on its unseen texts or on test.
struct FoldScores {
  std::vector<std::pair<std::string, double>> values;  ///< loss and metrics, by name
};

/// The result of a cross-validation.
struct FoldsResult {
  bool finished = false;          ///< false: stopped on request
  bool saves_failed = false;      ///< an intermediate checkpoint could not be written
  std::vector<FoldScores> folds;  ///< one per finished fold

  /// The mean over the folds, by name, in the order of `folds`.
  FoldScores mean() const;
  /// The sample standard deviation, with N - 1; 0 for one fold.
  FoldScores standard_deviation() const;
  /// One line for each fold, the mean and the standard deviation, for people.
  std::string table() const;
};

/// Cross-validation: trains the model of each of `config.folds`, as train() does, into
/// OUTPUT/fold-1, -2, … Writes OUTPUT/folds.json with the scores on test or, without a test set, on
/// dev. With `config.resume` "auto", finished folds are not trained again.
/// @param config  with `fold` 0. Parameters, ranks and errors as for train().
/// @throws c10::ValueError  also for a finished fold with other settings
FoldsResult train_folds(TrainConfig config,
                        const std::function<bool()>& stop_requested,
                        distributed::ProcessGroup* group = nullptr);

}  // namespace mezzo::text
