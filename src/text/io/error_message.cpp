#include "mezzo/text/io/error_message.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <string_view>

namespace mezzo::text {

std::string message_of(const std::exception& error) {
  if (const auto* of_torch = dynamic_cast<const c10::Error*>(&error)) {
    return of_torch->what_without_backtrace();
  }
  const std::string what = error.what();
  if (const auto* of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    // "filesystem error: cannot rename: No space left on device [a] [b]"
    constexpr std::string_view kBegin = "filesystem error: ";
    const std::string reason = of_files->code().message();
    const size_t end = what.find(reason);
    if (what.starts_with(kBegin) && end != std::string::npos && !of_files->path1().empty()) {
      std::string failed = what.substr(kBegin.size(), end - kBegin.size());
      if (!failed.starts_with("cannot ")) failed = "cannot be read: ";  // a name such as "status: "
      return of_files->path1().string() + ": " + failed + reason;
    }
  }
  return what;
}

std::string clause_of(const std::exception& error) {
  std::string message = message_of(error);
  if (message.ends_with('.')) message.pop_back();
  return message;
}

}  // namespace mezzo::text
