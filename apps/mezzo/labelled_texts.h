#pragma once

#include <filesystem>
#include <vector>

#include "mezzo/text/data/dataset.h"
#include "mezzo/text/tasks/task.h"
#include "model_session.h"

namespace mezzo::app {

/// Labelled texts, and what a task makes of their labels.
struct LabelledTexts {
  text::LabeledRows rows;
  at::Tensor targets;
};

/// @param warns  whether it says on stderr what was replaced in them
LabelledTexts read_labelled_texts(const std::vector<std::filesystem::path>& data,
                                  const text::ColumnNames& columns,
                                  const text::Task& task,
                                  bool warns);

/// A model's outputs, what it has read, and how good that is.
struct Evaluated {
  ModelSession::Result result;
  text::Evaluation evaluation;
};

Evaluated evaluate(ModelSession& session, const LabelledTexts& texts);

}  // namespace mezzo::app
