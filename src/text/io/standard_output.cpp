#include "mezzo/text/io/standard_output.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <cstdio>
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

}  // namespace mezzo::text
