#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace mezzo::text {

/// The token with an id among tokens that ascend by id, which are not empty.
/// @throws c10::ValueError  naming `source`, where no token has it.
inline const std::string& token_of(const std::vector<std::pair<std::string, int32_t>>& tokens,
                                   int32_t id,
                                   const std::string& source) {
  const auto found = std::ranges::lower_bound(tokens, id, {}, [](const auto& token) { return token.second; });
  TORCH_CHECK_VALUE(found != tokens.end() && found->second == id, "Tokenizer::token: no token of ", source,
                    " has the id ", id, "; ids go from 0 to ", tokens.back().second);
  return found->first;
}

}  // namespace mezzo::text
