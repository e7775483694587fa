#include "text/tokenizers/json_vocab.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "text/tokenizers/added_token_list.h"

namespace mezzo::text {

std::vector<std::pair<std::string, int32_t>> read_json_vocab(const JsonField& field) {
  std::vector<std::pair<std::string, int32_t>> vocab;
  for (const auto& [token, id] : field.as_object().items()) {
    check_token_length(field.file() + ": " + field.name(), token);
    vocab.emplace_back(token, JsonField(id, field.file(), field.name() + "[" + quoted_json(token) + "]").as_id());
  }
  std::sort(vocab.begin(), vocab.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  for (size_t i = 1; i < vocab.size(); ++i) {
    TORCH_CHECK_VALUE(vocab[i - 1].second != vocab[i].second, field.file(), ": ", field.name(), " gives the id ",
                      vocab[i].second, " to both ", quoted_json(vocab[i - 1].first), " and ",
                      quoted_json(vocab[i].first), "; ids must be distinct");
  }
  return vocab;
}

}  // namespace mezzo::text
