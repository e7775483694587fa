#pragma once

#include "mezzo/cpp20.h"

#include <stdexcept>
#include <string>
#include <string_view>

/// stdout, of which nothing is lost in silence: all that mezzo prints there goes through these.
namespace mezzo::text {

/// Nobody reads stdout any more: it is a pipe whose reader has gone. A program should then
/// end as filters do, quietly.
struct OutputClosed : std::runtime_error {
  OutputClosed() : std::runtime_error("nobody reads stdout any more") {}
};

/// Writes all of `text` to stdout, through the buffer of stdio. Not thread-safe.
/// @throws c10::Error  with the system's reason, also for what an earlier call had left in
///   the buffer; OutputClosed.
void write_stdout(std::string_view text);

/// Writes what is still in the buffer; a program that ends without it loses
/// that. Throws as write_stdout.
void flush_stdout();

/// `argument` as a shell reads it, for commands that are printed: 'out dir' in quotes, plain names as they are.
std::string shell_quoted(const std::string& argument);

}  // namespace mezzo::text
