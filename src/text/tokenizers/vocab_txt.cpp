#include "text/tokenizers/vocab_txt.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "text/io/read_file.h"
#include "text/io/utf8.h"
#include "text/tokenizers/added_token_list.h"
#include "text/tokenizers/white_space.h"

namespace mezzo::text {

nlohmann::json read_vocab_txt(const std::filesystem::path& path) {
  constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;  // far above any vocabulary
  const std::string bytes = read_file(path, kMaxFileBytes);
  nlohmann::json vocab = nlohmann::json::object();
  uint32_t line_number = 0;
  for (size_t begin = 0; begin < bytes.size(); ++line_number) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    const std::string_view line = std::string_view(bytes).substr(begin, end - begin);
    const std::string where = path.string() + ":" + std::to_string(line_number + 1);
    TORCH_CHECK_VALUE(find_invalid_utf8(line) == line.size(), where, ": not UTF-8; save the vocabulary as UTF-8");
    const std::string_view token = trim_end(line);
    check_token_length(where, token);
    vocab[token] = line_number;
    begin = end + 1;
  }
  return vocab;
}

}  // namespace mezzo::text
