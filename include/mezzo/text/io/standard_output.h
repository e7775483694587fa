#pragma once

#include "mezzo/cpp20.h"

#include <stdexcept>
#include <string>
#include <string_view>

/// stdout without silent losses: all output of mezzo to stdout uses these functions.
namespace mezzo::text {

/// The reader of stdout has closed the pipe. A program should then end silently, as filters do.
struct OutputClosed : std::runtime_error {
  OutputClosed() : std::runtime_error("nobody reads stdout any more") {}
};

/// Writes all of `text` to stdout, through the buffer of stdio. Not thread-safe.
/// @throws c10::Error  with the system's reason, also for the rest of an earlier call in the buffer
/// @throws OutputClosed  if the reader has closed the pipe
void write_stdout(std::string_view text);

/// Writes the rest of the buffer; without this call it is lost at the end of a program. Throws as
/// write_stdout.
void flush_stdout();

/// `argument` quoted for a shell, for printed commands: 'out dir' gets quotes, plain names do not.
std::string shell_quoted(const std::string& argument);

}  // namespace mezzo::text
