#include "text/io/read_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "system/unique_fd.h"
#include "text/io/read_error.h"

namespace mezzo::text {

std::string read_file(const std::filesystem::path& path, uint64_t max_bytes) {
  const auto check = [&](bool good) {
    if (!good) fail_to_read(path, errno);
  };
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  check(fd.get() >= 0);
  std::error_code unknown;  // a pipe has no size
  const uint64_t size = std::filesystem::file_size(path, unknown);
  std::string bytes(unknown ? 0 : std::min(size, max_bytes) + 1, '\0');  // one more, to see the end
  size_t used = 0;
  while (true) {
    if (used == bytes.size()) {
      bytes.resize(std::max<size_t>(2 * used, 1 << 16));
    }
    const ssize_t count = ::read(fd.get(), bytes.data() + used, bytes.size() - used);
    if (count == 0) {
      bytes.resize(used);
      check_no_lfs_pointer(path.string(), bytes);
      return bytes;
    }
    if (count < 0 && errno == EINTR) {
      continue;
    }
    check(count > 0);
    used += static_cast<size_t>(count);
    TORCH_CHECK_VALUE(used <= max_bytes, path.string(), ": has more than ", max_bytes, " bytes, the limit.");
  }
}

void check_no_lfs_pointer(const std::string& name, std::string_view bytes) {
  TORCH_CHECK_VALUE(!bytes.starts_with("version https://git-lfs.github.com/spec/"), name,
                    ": holds a pointer of Git LFS in place of the file; `git lfs pull` fetches the file itself");
}

void check_is_utf8_text(const std::string& name, std::string_view bytes) {
  using namespace std::string_view_literals;
  const auto check = [&](bool good, const char* encoding) {
    TORCH_CHECK_VALUE(good, name, ": the file is ", encoding, ". Save it as UTF-8.");
  };
  check(!bytes.starts_with("\xFF\xFE\0\0"sv) && !bytes.starts_with("\0\0\xFE\xFF"sv), "UTF-32");
  check(!bytes.starts_with("\xFF\xFE") && !bytes.starts_with("\xFE\xFF"), "UTF-16");
  check(bytes.substr(0, 16).find('\0') == bytes.npos, "not text in UTF-8: it has zero bytes, as UTF-16 has");
}

}  // namespace mezzo::text
