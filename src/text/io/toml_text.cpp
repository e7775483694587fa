#include "mezzo/text/io/toml_text.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string_view>

#include "text/io/read_file.h"

namespace mezzo::text {

std::string read_toml_text(const std::filesystem::path& file) {
  constexpr uint64_t kMostBytes = 1 << 20;
  constexpr std::ptrdiff_t kMaxDots = 1000;
  std::string text = read_file(file, kMostBytes);
  size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    ++number;
    TORCH_CHECK_VALUE(std::ranges::count(line, '.') <= kMaxDots, file.string(), ":", number, ": has more than ",
                      kMaxDots, " dots in a line; is this a TOML file?");
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  }
  return text;
}

}  // namespace mezzo::text
