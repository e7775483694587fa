#include "text/tokenizers/vocab_files.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string_view>

#include "text/io/json.h"
#include "text/io/read_file.h"
#include "text/io/utf8.h"
#include "text/tokenizers/added_tokens.h"
#include "text/tokenizers/white_space.h"

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
