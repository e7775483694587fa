#include "mezzo/text/io/toml_text.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "text/io/read_file.h"

namespace mezzo::text {

std::string read_toml_text(const std::filesystem::path& file) {
  constexpr uint64_t kMostBytes = 1 << 20;
  constexpr std::ptrdiff_t kMostDots = 5000;
  std::string text = read_file(file, kMostBytes);
  check_is_utf8_text(file.string(), text);
  TORCH_CHECK_VALUE(std::ranges::count(text, '.') <= kMostDots, file.string(), ": has more than ", kMostDots,
                    " dots; is this a TOML file of settings?");
  return text;
}

}  // namespace mezzo::text
