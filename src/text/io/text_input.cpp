#include "text/io/text_input.h"

#include <c10/util/Exception.h>
#include <fcntl.h>

#include <cerrno>
#include <system_error>

namespace mezzo::text {
namespace {

constexpr size_t kBlockBytes = 64 << 10;

}  // namespace

TextInput::TextInput(const std::filesystem::path& file, std::nullptr_t)
    : file_(file.string()), fd_(::open(file.c_str(), O_RDONLY | O_CLOEXEC)) {
  TORCH_CHECK_VALUE(fd_.get() >= 0, file_, ": cannot be read: ", std::generic_category().message(errno), ".");
  std::error_code none;
  TORCH_CHECK_VALUE(!std::filesystem::is_character_file(file, none), file_, ": is a device, not a file.");
  append_block();  // a folder can be opened, but not read
}

/// Adds what one read gives to the bytes that were not moved past; nothing at the end.
void TextInput::append_block() {
  dropped_ += position_;
  block_.erase(0, position_);
  position_ = 0;
  const size_t kept = block_.size();
  block_.resize(kept + kBlockBytes);
  ssize_t count = 0;
  do {
    count = ::read(fd_.get(), block_.data() + kept, kBlockBytes);
  } while (count < 0 && errno == EINTR);
  TORCH_CHECK_VALUE(count >= 0, file_, ": cannot be read: ", std::generic_category().message(errno), ".");
  block_.resize(kept + static_cast<size_t>(count));
  text_ = block_;
  if (count == 0) fd_.reset();
}

bool TextInput::read_on() {
  if (fd_.get() < 0) return false;
  append_block();
  return position_ < text_.size();
}

std::string_view TextInput::ahead(size_t count) {
  while (text_.size() - position_ < count && fd_.get() >= 0) append_block();
  return text_.substr(position_, count);
}

}  // namespace mezzo::text
