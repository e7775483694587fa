#include "mezzo/text/data/rows.h"

#include <ATen/ceil_div.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <new>
#include <system_error>
#include <utility>

namespace mezzo::text {
namespace {

constexpr size_t kAlignment = alignof(int64_t);

/// A file without a name, which is gone with its descriptor.
int open_unlinked(const std::filesystem::path& folder) {
  int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) {  // some file systems have none such
    std::string name = (folder / "mezzo-rows-XXXXXX").string();
    file = ::mkostemp(name.data(), O_CLOEXEC);
    if (file >= 0) ::unlink(name.c_str());
  }
  TORCH_CHECK(file >= 0, folder.string(),
              ": no temporary file can be made here: ", std::generic_category().message(errno),
              ". Set TMPDIR to another folder.");
  return file;
}

}  // namespace

RowArena::~RowArena() {
  for (const Block& block : blocks_) {
    if (block.is_mapped) {
      ::munmap(block.bytes, block.size);
    } else {
      ::operator delete(block.bytes);
    }
    if (memory_) (block.is_mapped ? memory_->in_files_ : memory_->in_memory_) -= static_cast<int64_t>(block.size);
  }
  if (file_ >= 0) ::close(file_);
}

std::byte* RowArena::allocate(size_t bytes) {
  // Blocks grow, so that a few texts need little and many need few blocks.
  constexpr size_t kLeast = 1024, kMost = size_t{4} << 20;
  bytes = at::round_up(bytes, kAlignment);
  if (blocks_.empty() || blocks_.back().size - used_ < bytes) {
    const size_t usual = blocks_.empty() ? kLeast : std::min(2 * blocks_.back().size, kMost);
    const int64_t before =
        blocks_.empty() ? 0 : offset(blocks_.back().bytes) + static_cast<int64_t>(blocks_.back().size);
    blocks_.push_back(new_block(std::max(bytes, usual)));
    offsets_.emplace(blocks_.back().bytes, before);
    used_ = 0;
  }
  return blocks_.back().bytes + std::exchange(used_, used_ + bytes);
}

int64_t RowArena::offset(const void* bytes) const {
  const auto& [block, before] = *std::prev(offsets_.upper_bound(bytes));
  return before + (static_cast<const std::byte*>(bytes) - static_cast<const std::byte*>(block));
}

RowArena::Block RowArena::new_block(size_t size) {
  const auto more = static_cast<int64_t>(size);
  if (!memory_) return {static_cast<std::byte*>(::operator new(size)), size, false};
  if (memory_->in_memory_.fetch_add(more) + more <= memory_->limit()) {
    return {static_cast<std::byte*>(::operator new(size)), size, false};
  }
  memory_->in_memory_ -= more;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  size = at::round_up(size, page);
  if (file_ < 0) file_ = open_unlinked(memory_->folder());
  // Space is taken now: a full disk would end the program by SIGBUS otherwise.
  const int error = ::posix_fallocate(file_, file_size_, static_cast<off_t>(size));
  TORCH_CHECK(error == 0, memory_->folder().string(),
              ": no space for the rows of the data files: ", std::generic_category().message(error),
              ". Set TMPDIR to a folder with more space.");
  void* const bytes = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_, file_size_);
  TORCH_CHECK(bytes != MAP_FAILED, memory_->folder().string(),
              ": a file cannot be mapped here: ", std::generic_category().message(errno),
              ". Set TMPDIR to another folder.");
  // The last block is full: its pages need no memory of this process until they are read.
  if (!blocks_.empty() && blocks_.back().is_mapped) ::madvise(blocks_.back().bytes, blocks_.back().size, MADV_DONTNEED);
  file_size_ += static_cast<int64_t>(size);
  memory_->in_files_ += static_cast<int64_t>(size);
  return {static_cast<std::byte*>(bytes), size, true};
}

}  // namespace mezzo::text
