#include "mezzo/text/inference/prediction_csv.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>

namespace mezzo::text {
namespace {

using Fields = std::vector<std::string>;
const std::string kByteOrderMark = "\xEF\xBB\xBF";  // without which Excel reads UTF-8 as another encoding
using Scores = std::vector<std::pair<std::string, double>>;

std::string csv_line(const Fields& fields) {
  std::string line;
  for (const std::string& field : fields) {
    if (!line.empty()) line += ',';
    const bool is_plain = !field.empty() && field.find_first_of(",\"\r\n") == std::string::npos;
    if (is_plain) {
      line += field;
      continue;
    }
    line += '"';
    for (const char c : field) line += c == '"' ? "\"\"" : std::string(1, c);
    line += '"';
  }
  return line + "\r\n";
}

struct ToField {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(double value) const { return fmt::format("{}", value); }
  std::string operator()(const std::string& value) const { return value; }
  std::string operator()(const Fields& values) const { return fmt::format("{}", fmt::join(values, "|")); }
  template <class Words>
  std::string operator()(const Words&) const {
    return "";  // of tasks that the constructor refuses
  }
};

}  // namespace

PredictionCsv::PredictionCsv(const Task& task) : task_(task) {
  TORCH_CHECK_VALUE(task.head().rows != RowsPer::kToken,
                    "a .csv has one line a text, and the model labels words; pass an --output that ends in .jsonl");
}

std::string PredictionCsv::lines(const TextSpans& rows, const at::Tensor& outputs, const PredictionOptions& options) {
  const auto predictions = task_.predictions(outputs, {rows.texts, rows.words, {}}, options);
  std::string text;
  for (size_t i = 0; i < predictions.size(); ++i) {
    const auto others = rows.others.empty() || rows.others[i].empty() ? nlohmann::ordered_json::object()
                                                                      : nlohmann::ordered_json::parse(rows.others[i]);
    Fields header = {"text"}, fields = {std::string(rows.texts[i])};
    const auto add = [&](std::string name, std::string value) {
      if (std::ranges::find(header, name) != header.end()) name = "columns." + name;
      header.push_back(std::move(name));
      fields.push_back(std::move(value));
    };
    if (!rows.text_pairs.empty()) add("text_pair", std::string(rows.text_pairs[i]));
    for (const auto& [name, value] : predictions[i]) {
      if (const auto* scores = std::get_if<Scores>(&value)) {
        for (const auto& [label, score] : *scores) add("score_" + label, ToField()(score));
      } else {
        add(name, std::visit(ToField(), value));
      }
    }
    ++num_rows_;
    for (const auto& [name, value] : others.items()) {
      const bool is_known = std::ranges::find(other_columns_, name) != other_columns_.end();
      TORCH_CHECK_VALUE(is_known || num_rows_ == 1, "row ", num_rows_, " has the column ", name,
                        ", which row 1 lacks. Pass an --output that ends in .jsonl.");
      if (!is_known) other_columns_.push_back(name);
    }
    for (const std::string& name : other_columns_) {
      const auto found = others.find(name);
      add(name, found == others.end() ? "" : found->is_string() ? found->get<std::string>() : found->dump());
    }
    if (num_rows_ == 1) text += kByteOrderMark + csv_line(header);
    text += csv_line(fields);
  }
  return text;
}

}  // namespace mezzo::text
