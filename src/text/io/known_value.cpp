#include "text/io/known_value.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "mezzo/text/io/nearest_name.h"
#include "text/io/printable.h"

namespace mezzo::text {
namespace {

/// Names that PyTorch and others use, and mezzo's names.
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kOtherWords = {{
    {"bfloat16", "bf16"},
    {"float16", "fp16"},
    {"half", "fp16"},
    {"float32", "fp32"},
    {"float", "fp32"},
    {"gpu", "cuda"},
    {"f1", "macro_f1"},
    {"f1_macro", "macro_f1"},
    {"auc", "roc_auc"},
    {"loss", "log_loss"},
}};

}  // namespace

void check_known(std::string_view what, std::string_view value, const std::vector<std::string>& known) {
  const auto is_known = [&](std::string_view name) {
    return std::find(known.begin(), known.end(), name) != known.end();
  };
  if (is_known(value)) {
    return;
  }
  const auto word = std::find_if(kOtherWords.begin(), kOtherWords.end(),
                                 [&](const auto& pair) { return pair.first == value && is_known(pair.second); });
  const std::string meant =
      word != kOtherWords.end() ? fmt::format(" Did you mean '{}'?", word->second) : did_you_mean(value, known);
  TORCH_CHECK_VALUE(false, fmt::format("{} {} is not known: {}{}{}", what, quoted_name(value), fmt::join(known, ", "),
                                       meant.empty() ? "" : ".", meant));
}

}  // namespace mezzo::text
