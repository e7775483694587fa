#include "text/tokenizers/added_token_list.h"

#include <c10/util/Exception.h>

namespace mezzo::text {

void check_token_length(const std::string& where, std::string_view token) {
  constexpr size_t kMaxTokenBytes = 1000;  // looking for tokens takes time in proportion to the longest
  TORCH_CHECK_VALUE(token.size() <= kMaxTokenBytes, where, ": a token of ", token.size(), " bytes; at most ",
                    kMaxTokenBytes, " make one. Is this the vocabulary of a BERT model?");
}

AddedToken read_added_token(const JsonField& field, bool special) {
  AddedToken token;
  token.special = special;
  const bool is_content = field.value().is_string();
  token.content = (is_content ? field : field["content"]).as_string();
  check_token_length(field.file() + ": " + field.name(), token.content);
  if (is_content) {
    token.normalized = !special;
    return token;
  }
  token.special = field.bool_or("special", special);
  token.single_word = field.bool_or("single_word", false);
  token.lstrip = field.bool_or("lstrip", false);
  token.rstrip = field.bool_or("rstrip", false);
  token.normalized = field.bool_or("normalized", !token.special);
  return token;
}

}  // namespace mezzo::text
