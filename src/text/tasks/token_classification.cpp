#include "mezzo/text/tasks/token_classification.h"

#include <ATen/ops/bincount.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/softmax.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "mezzo/text/data/tokenized_texts.h"
#include "text/io/printable.h"
#include "text/io/words.h"
#include "text/tasks/elements.h"
#include "text/tasks/entities.h"
#include "text/tasks/softmax_loss.h"
#include "text/tasks/surest.h"

namespace mezzo::text {
namespace {

/// In the order of what evaluate() measures.
std::vector<MetricInfo> token_metrics(bool has_entities) {
  if (has_entities) {
    return {{"f1", "F1"},         {"accuracy", "accuracy"}, {"precision", "precision"},
            {"recall", "recall"}, {"macro_f1", "macro F1"}, {"weighted_f1", "weighted F1"}};
  }
  return {{"accuracy", "accuracy"}, {"macro_f1", "macro F1"}, {"weighted_f1", "weighted F1"}};
}

/// The places of a text's words, each after the one before: in bytes, and in code points.
class WordPlaces {
 public:
  WordPlaces(std::string_view text, std::span<const std::string> words) : text_(text) {
    size_t byte = 0, code_point = 0;
    for (const std::string& word : words) {
      const size_t begin = std::min(text.find(word, byte), text.size());
      code_point += count_code_points(text.substr(byte, begin - byte));
      const size_t code_points = count_code_points(word);
      places_.push_back({begin, std::min(begin + word.size(), text.size()), code_point, code_point + code_points});
      byte = places_.back().end;
      code_point += code_points;
    }
  }

  EntityPrediction entity(const Entity& entity, double score) const {
    const Place &first = places_[static_cast<size_t>(entity.begin)],
                &last = places_[static_cast<size_t>(entity.end) - 1];
    return {std::string(entity.type), score, std::string(text_.substr(first.begin, last.end - first.begin)),
            static_cast<int64_t>(first.first_code_point), static_cast<int64_t>(last.end_code_point)};
  }

 private:
  struct Place {
    size_t begin, end, first_code_point, end_code_point;
  };
  std::string_view text_;
  std::vector<Place> places_;
};

/// The first token of each word, or -1 if it has none.
std::vector<int64_t> first_tokens(std::span<const int32_t> word_ids, size_t num_words) {
  std::vector<int64_t> tokens(num_words, -1);
  for (size_t token = word_ids.size(); token-- > 0;) {
    if (word_ids[token] >= 0) tokens[static_cast<size_t>(word_ids[token])] = static_cast<int64_t>(token);
  }
  return tokens;
}

/// Of the words of texts, in their order.
struct WordRows {
  at::Tensor places;   ///< in `targets`, flat
  at::Tensor outputs;  ///< [words, labels]
  at::Tensor ids;      ///< int64
};

WordRows rows_of_words(const at::Tensor& outputs, const at::Tensor& targets) {
  const auto places = targets.flatten().ge(0).nonzero().squeeze(1);
  return {places, outputs.flatten(0, 1).index_select(0, places),
          targets.flatten().index_select(0, places).to(at::kLong)};
}

}  // namespace

TokenClassification::TokenClassification(LabelMap labels, std::string_view metric, std::string on_unknown_label)
    : Classification(labels,
                     {token_metrics(are_entity_labels(labels.names())), /*num_shown=*/2, metric},
                     std::move(on_unknown_label)),
      has_entities_(are_entity_labels(labels.names())) {}

std::string TokenClassification::summary() const { return fmt::format("{} labels of words", labels().size()); }

at::Tensor TokenClassification::targets(const LabeledRows& rows) const {
  return word_label_ids(rows, labels(), on_unknown_label());
}

std::vector<std::string> TokenClassification::untrained(const at::Tensor& targets, const std::string& why) const {
  auto lines = Classification::untrained(targets, why);
  const auto odd = std::ranges::find_if(label_names(), [](const std::string& name) { return !is_entity_label(name); });
  if (!has_entities_ && std::ranges::any_of(label_names(), [](const std::string& name) {
        return name != "O" && is_entity_label(name);
      })) {
    lines.push_back(
        fmt::format("words are scored instead of entities: label {} is neither O nor B-, I-, E- or S- with a type",
                    quoted_name(*odd)));
  }
  return lines;
}

at::Tensor TokenClassification::label_counts(const at::Tensor& targets) const {
  return at::bincount(targets.masked_select(targets.ge(0)), /*weights=*/{}, labels().size());
}

at::Tensor TokenClassification::balanced_weights(const at::Tensor& counts, int64_t) const {
  return counts.sum().to(at::kDouble) / (counts.to(at::kDouble) * counts.count_nonzero());
}

at::Tensor TokenClassification::loss(const at::Tensor& outputs, const PackedBatch& batch) const {
  return softmax_loss(outputs, batch.targets, loss_options(), class_weights());
}

Evaluation TokenClassification::evaluate(const at::Tensor& outputs, const at::Tensor& targets) const {
  const auto [places, rows, ids] = rows_of_words(outputs, targets);
  Evaluation evaluation = metric_choice().begin(at::cross_entropy_loss(rows, ids).item<double>());
  if (!std::isfinite(evaluation.loss)) return evaluation;
  const auto predicted = rows.argmax(1);
  const auto is = elements<int64_t>(ids), was_predicted = elements<int64_t>(predicted);
  if (!has_entities_) {
    auto report = classification_report(is, was_predicted, label_names());
    const double values[] = {report.accuracy, report.macro_avg.f1, report.weighted_avg.f1};
    metric_choice().fill(evaluation, values, std::move(report));
    return evaluation;
  }
  EntityCounts counts;
  const int64_t length = targets.size(1);
  const auto place = elements<int64_t>(places);
  for (size_t begin = 0; begin < place.size();) {
    std::vector<std::string_view> names, predicted_names;
    const int64_t text = place[begin] / length;
    for (; begin < place.size() && place[begin] / length == text; ++begin) {
      names.push_back(labels().name(is[begin]));
      predicted_names.push_back(labels().name(was_predicted[begin]));
    }
    counts.add(names, predicted_names);
  }
  const auto report = counts.report();
  const ClassScores& all = report.several->micro_avg;
  const double accuracy = predicted.eq(ids).to(at::kDouble).mean().item<double>();
  const double values[] = {all.f1, accuracy, all.precision, all.recall, report.macro_avg.f1, report.weighted_avg.f1};
  metric_choice().fill(evaluation, values, report);
  return evaluation;
}

std::vector<Mistake> TokenClassification::mistakes(const at::Tensor& outputs, const at::Tensor& targets) const {
  const auto [places, rows, ids] = rows_of_words(outputs, targets);
  auto mistakes = surest_mistakes(at::softmax(rows, 1, at::kDouble), ids, rows.argmax(1), label_names());
  const auto place = elements<int64_t>(places);
  for (Mistake& mistake : mistakes) {
    const int64_t flat = place[static_cast<size_t>(mistake.row)];
    mistake.row = flat / targets.size(1);
    mistake.token = flat % targets.size(1);
  }
  return mistakes;
}

std::vector<Prediction> TokenClassification::predictions(const at::Tensor& outputs,
                                                         const WordsOfTexts& words,
                                                         const PredictionOptions& options) const {
  TORCH_CHECK_VALUE(options == PredictionOptions(),
                    "--min-score and --top-k are for labels of texts; the model is trained for token_classification");
  const auto [scores, best] = at::softmax(outputs, 2).max(2);  // [n, L] each
  const auto score = scores.accessor<float, 2>();
  const auto id = best.accessor<int64_t, 2>();
  std::vector<Prediction> predictions;
  for (size_t i = 0; i < words.words.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    const auto tokens = first_tokens(words.word_ids[i], words.words[i].size());
    std::vector<std::optional<std::string>> names;
    std::vector<std::string_view> labels_of_words;
    for (const int64_t token : tokens) {
      names.push_back(token < 0 ? std::nullopt : std::optional(labels().name(id[row][token])));
    }
    for (const auto& name : names) labels_of_words.push_back(name ? std::string_view(*name) : std::string_view());
    std::vector<EntityPrediction> entities;
    if (has_entities_) {
      const WordPlaces places(words.texts[i], words.words[i]);
      for (const Entity& entity : entities_of(labels_of_words)) {
        double sum = 0;
        for (int64_t word = entity.begin; word < entity.end; ++word)
          sum += score[row][tokens[static_cast<size_t>(word)]];
        entities.push_back(places.entity(entity, sum / static_cast<double>(entity.end - entity.begin)));
      }
    }
    Prediction prediction{{"words", words.words[i]}, {"labels", std::move(names)}};
    if (has_entities_) prediction.emplace_back("entities", std::move(entities));
    predictions.push_back(std::move(prediction));
  }
  return predictions;
}

}  // namespace mezzo::text
