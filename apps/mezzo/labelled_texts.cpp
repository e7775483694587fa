#include "labelled_texts.h"

#include <utility>

#include "mezzo/text/data/tokenized_texts.h"
#include "text_source.h"

namespace mezzo::app {

LabelledTexts read_labelled_texts(const std::vector<std::filesystem::path>& data,
                                  const text::ColumnNames& columns,
                                  const text::Task& task,
                                  bool warns) {
  const auto kind = text::label_kind(task.problem_type());
  auto rows = text::load_rows(
      data, text::LoadRowsOptions().label_kind(kind).columns(columns).on_other_task("a model trained with --task"));
  if (warns) {
    print_notes(rows);
  }
  auto targets = task.targets(rows);
  return {std::move(rows), std::move(targets)};
}

Evaluated evaluate(ModelSession& session, const LabelledTexts& texts) {
  auto result = session.run({texts.rows.texts, texts.rows.text_pairs, texts.rows.words});
  text::set_targets(result.texts, texts.targets);
  text::check_reads_words(result.texts, texts.rows.places.file, session.classifier().max_length());
  auto evaluation = session.task().evaluate(result.outputs, result.texts.targets);
  return {std::move(result), std::move(evaluation)};
}

}  // namespace mezzo::app
