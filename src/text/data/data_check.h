// What is odd about the data of a run: nothing of it need be wrong, but who
// knows of it may save a day.
#pragma once

#include <string>
#include <vector>

#include "mezzo/text/data/dataset.h"

namespace mezzo::text {

/// Refuse training data that nobody can mean: texts that are all empty, or all of one label.
/// @throws c10::ValueError
void check_has_text(const LabeledRows& rows);
void check_labels_differ(const LabeledRows& rows);
/// Refuse numbers that are to be predicted, not told apart: many fractions.
/// @param task_flag  for messages, before the name of a task
void check_are_classes(const LabeledRows& rows, const LabelMap& labels, const std::string& task_flag);

/// Problems within `rows`, one line each, with a number and an example's place. They are empty
/// texts, repeated texts with one label or two, labels that differ only in white space or case, and
/// integers instead of names. Linear in their size.
std::vector<std::string> odd_rows(const LabeledRows& rows, const LabelMap& labels);
/// The same without the checks of label names.
std::vector<std::string> odd_texts(const LabeledRows& rows);

/// A line if most texts have a label that no other text has, as if labels were read from a column of identifiers or of
/// texts. Empty otherwise, for few texts, and for labels that are not classes.
std::string labels_like_identifiers(const LabeledRows& rows, const std::string& label_column);

/// A line about the texts of `held_out` ("dev", "test": `role`) that `train`
/// has, too, if there are any.
std::vector<std::string> shared_texts(const Dataset& train, const Dataset& held_out, const std::string& role);

/// A line about the labels that have no text; nothing if all have one.
/// @param has_text  of each label.
/// @param text  of which kind: "training text".
std::vector<std::string> labels_without_text(const std::vector<bool>& has_text,
                                             const LabelMap& labels,
                                             const std::string& text);

}  // namespace mezzo::text
