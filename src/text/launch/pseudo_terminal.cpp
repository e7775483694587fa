#include "text/launch/pseudo_terminal.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace mezzo::text {

PseudoTerminal open_pseudo_terminal() {
  PseudoTerminal pair;
  pair.reader = UniqueFd(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  std::array<char, 128> name{};
  const bool is_open = pair.reader.get() >= 0 && ::grantpt(pair.reader.get()) == 0 &&
                       ::unlockpt(pair.reader.get()) == 0 &&
                       ::ptsname_r(pair.reader.get(), name.data(), name.size()) == 0;
  if (is_open) {
    pair.terminal = UniqueFd(::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  }
  TORCH_CHECK(pair.terminal.get() >= 0, "launch: cannot open a terminal for a rank: ", std::strerror(errno));
  termios settings{};
  ::tcgetattr(pair.terminal.get(), &settings);
  ::cfmakeraw(&settings);  // else each line feed would gain a carriage return
  ::tcsetattr(pair.terminal.get(), TCSANOW, &settings);
  return pair;
}

void copy_terminal_size(int model, int reader, int64_t fewer_columns) {
  winsize size{};
  if (::ioctl(model, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    size.ws_col = static_cast<unsigned short>(std::max<int64_t>(size.ws_col - fewer_columns, 1));
    ::ioctl(reader, TIOCSWINSZ, &size);
  }
}

}  // namespace mezzo::text
