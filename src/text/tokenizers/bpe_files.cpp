#include "text/tokenizers/bpe_files.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "text/io/json.h"
#include "text/io/read_file.h"
#include "text/io/utf8.h"
#include "text/tokenizers/json_field.h"

namespace mezzo::text {

nlohmann::json read_bpe_files(const std::filesystem::path& vocab_json, const std::filesystem::path& merges_txt) {
  constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;  // far above any list of merges
  nlohmann::json vocab = read_json_object(vocab_json), merges = nlohmann::json::array();
  const std::string bytes = read_file(merges_txt, kMaxFileBytes);
  int64_t line_number = 0;
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    std::string_view line = std::string_view(bytes).substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    const bool is_merge = space != line.npos && line.find(' ', space + 1) == line.npos;
    TORCH_CHECK_VALUE(is_merge && find_invalid_utf8(line) == line.size(), merges_txt.string(), ":", line_number,
                      ": a line must have two tokens with a space between, in UTF-8; fetch the file again");
    std::string left(line.substr(0, space)), right(line.substr(space + 1));
    for (const std::string& token : {left, right, left + right}) {
      TORCH_CHECK_VALUE(vocab.contains(token), merges_txt.string(), ":", line_number, ": has the token ",
                        quoted_json(token), ", which ", vocab_json.string(), " lacks; fetch both files again");
    }
    merges.push_back(nlohmann::json::array({std::move(left), std::move(right)}));
  }
  return {{"vocab", std::move(vocab)}, {"merges", std::move(merges)}};
}

}  // namespace mezzo::text
