#include "mezzo/text/io/standard_output.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace mezzo::text {
namespace {

[[noreturn]] void fail_to_write(int error) {
  if (error == EPIPE) {
    throw OutputClosed();
  }
  TORCH_CHECK(false, "cannot write to stdout: ", std::generic_category().message(error));
}

}  // namespace

void write_stdout(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    fail_to_write(errno);
  }
}

void flush_stdout() {
  if (std::fflush(stdout) != 0) {
    fail_to_write(errno);
  }
}

std::string shell_quoted(const std::string& argument) {
  const auto is_plain = [](unsigned char c) { return std::isalnum(c) != 0 || std::strchr("_./=:,@%+-", c) != nullptr; };
  if (!argument.empty() && std::ranges::all_of(argument, is_plain)) return argument;
  std::string text = "'";
  for (const char c : argument) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

}  // namespace mezzo::text
