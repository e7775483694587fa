#include "text/launch/pipe.h"

#include <c10/util/Exception.h>
#include <fcntl.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace mezzo::text {

Pipe make_pipe() {
  std::array<int, 2> ends{};
  TORCH_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "launch: cannot make a pipe: ", std::strerror(errno));
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

}  // namespace mezzo::text
