#include "text/checkpoint/best_model_file.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <system_error>

#include "mezzo/text/io/error_message.h"
#include "text/checkpoint/checkpoint_store.h"
#include "text/io/content_hash.h"

namespace mezzo::text {

void BestModelFile::written(const std::string& hash) {
  hash_ = hash;
  if (::stat(path_.c_str(), &as_written_) != 0) {
    as_written_ = {};
  }
}

std::string BestModelFile::problem(Look look) const {
  struct stat now{};
  if (::stat(path_.c_str(), &now) != 0) {
    return path_.string() + (errno == ENOENT ? ": is missing: it was removed while the run was going"
                                             : ": cannot be looked at: " + std::generic_category().message(errno));
  }
  const bool untouched = now.st_dev == as_written_.st_dev && now.st_ino == as_written_.st_ino &&
                         now.st_size == as_written_.st_size && now.st_mtim.tv_sec == as_written_.st_mtim.tv_sec &&
                         now.st_mtim.tv_nsec == as_written_.st_mtim.tv_nsec;
  if (look == Look::kQuick && untouched) {
    return "";
  }
  try {
    return hash_of_file(path_) == hash_
               ? ""
               : path_.string() + ": is damaged: its contents differ from the file that the run wrote";
  } catch (const c10::Error& error) {
    return clause_of(error);
  }
}

std::string BestModelFile::mend(Look look, const std::function<std::optional<std::filesystem::path>()>& find_copy) {
  const std::string what = problem(look);
  if (!what.empty()) {
    const auto copy = find_copy();
    TORCH_CHECK_VALUE(copy, what,
                      ". It held the best weights, and no checkpoint has a copy of them, so the run ends here. "
                      "--resume auto continues from the last checkpoint");
    copy_intact_file(*copy, path_, hash_);
  }
  written(hash_);
  return what;
}

}  // namespace mezzo::text
