#include "mezzo/text/io/failure_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <string_view>

#include "system/unique_fd.h"
#include "text/io/json.h"

namespace mezzo::text {
namespace {

void write_over(const char* path, int more_flags, std::string_view text) {
  const UniqueFd file(::open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | more_flags, 0666));
  struct stat status{};
  if (file.get() >= 0 && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
      ::ftruncate(file.get(), 0) == 0) {
    [[maybe_unused]] const auto written = ::write(file.get(), text.data(), text.size());
  }
}

}  // namespace

void record_failure(const std::string& message) {
  if (const char* path = std::getenv("TORCHELASTIC_ERROR_FILE"); path != nullptr && *path != '\0') {
    const nlohmann::json error = {{"message", message},
                                  {"extraInfo", {{"timestamp", std::to_string(std::time(nullptr))}}}};
    const nlohmann::json file = {{"message", error}};
    write_over(path, O_CREAT, file.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace));
  }
  const char* log = std::getenv("TERMINATION_LOG");
  write_over(log != nullptr ? log : "/dev/termination-log", 0, message);
}

}  // namespace mezzo::text
