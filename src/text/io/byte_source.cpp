#include "text/io/byte_source.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>

#include "system/unique_fd.h"
#include "text/io/read_error.h"
#include "text/io/utf8.h"

#ifdef MEZZO_HAS_ZLIB
#include <zlib.h>
#endif
#ifdef MEZZO_HAS_ZSTD
#include <zstd.h>
#endif

namespace mezzo::text {
namespace {

class FileBytes : public ByteSource {
 public:
  explicit FileBytes(const std::filesystem::path& file)
      : file_(file.string()), fd_(::open(file.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_.get() < 0) fail_to_read(file_, errno);
    std::error_code none;
    TORCH_CHECK_VALUE(!std::filesystem::is_character_file(file, none), file_, ": is a device, not a file.");
  }

  size_t read(std::span<char> bytes) override {
    ssize_t count = 0;
    do {
      count = ::read(fd_.get(), bytes.data(), bytes.size());
    } while (count < 0 && errno == EINTR);
    if (count < 0) fail_to_read(file_, errno);
    return static_cast<size_t>(count);
  }

 private:
  std::string file_;
  UniqueFd fd_;
};

/// The bytes of a compressed file, and a decoder's position in them.
class CompressedBytes {
 public:
  explicit CompressedBytes(const std::filesystem::path& file)
      : file_(file.string()), source_(file), buffer_(size_t{64} << 10, '\0') {}

  const std::string& file() const { return file_; }
  /// Bytes that were read and not yet taken; reads on if there are none. Empty at the end.
  std::string_view ahead() {
    if (begin_ == end_) {
      begin_ = 0;
      end_ = source_.read(buffer_);
    }
    return std::string_view(buffer_).substr(begin_, end_ - begin_);
  }
  void take(size_t count) { begin_ += count; }

 private:
  std::string file_;
  FileBytes source_;
  std::string buffer_;
  size_t begin_ = 0, end_ = 0;
};

/// A build without zlib and zstd has no use for it.
[[noreturn, maybe_unused]] void fail_damaged(const std::string& file, std::string_view what) {
  TORCH_CHECK_VALUE(false, file, ": ", what,
                    ". Fetch the file again, or remove the ending of its name if it is not compressed.");
}

#ifdef MEZZO_HAS_ZLIB
class GzipBytes : public ByteSource {
 public:
  explicit GzipBytes(const std::filesystem::path& file) : input_(file) {
    constexpr int kWithGzipHeader = 15 + 16;  // of the largest window
    TORCH_CHECK(inflateInit2(&stream_, kWithGzipHeader) == Z_OK, input_.file(), ": zlib cannot be initialized");
  }
  ~GzipBytes() override { inflateEnd(&stream_); }
  GzipBytes(const GzipBytes&) = delete;
  GzipBytes& operator=(const GzipBytes&) = delete;

  size_t read(std::span<char> bytes) override {
    while (true) {
      const std::string_view compressed = input_.ahead();
      if (!in_part_ && !is_first_ && compressed.starts_with('\0')) {  // tapes and disks fill blocks so
        input_.take(std::min(compressed.find_first_not_of('\0'), compressed.size()));
        continue;
      }
      if (compressed.empty()) {
        if (in_part_ || is_first_) fail_damaged(input_.file(), "the gzip data ends in the middle");
        return 0;
      }
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));  // which zlib only reads
      stream_.avail_in = static_cast<uInt>(compressed.size());
      stream_.next_out = reinterpret_cast<Bytef*>(bytes.data());
      stream_.avail_out = static_cast<uInt>(bytes.size());
      in_part_ = true;
      is_first_ = false;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      input_.take(compressed.size() - stream_.avail_in);
      if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
        fail_damaged(input_.file(), "is not gzip data, or is damaged");
      }
      if (status == Z_STREAM_END) {
        in_part_ = false;
        inflateReset(&stream_);
      }
      if (const size_t count = bytes.size() - stream_.avail_out; count > 0) return count;
    }
  }

 private:
  CompressedBytes input_;
  z_stream stream_ = {};
  bool in_part_ = false;  // of one or several, which gzip takes for one file
  bool is_first_ = true;
};
#endif

#ifdef MEZZO_HAS_ZSTD
class ZstdBytes : public ByteSource {
 public:
  explicit ZstdBytes(const std::filesystem::path& file) : input_(file), stream_(ZSTD_createDStream()) {
    TORCH_CHECK(stream_ != nullptr, input_.file(), ": zstd cannot be initialized");
  }

  size_t read(std::span<char> bytes) override {
    ZSTD_outBuffer out{bytes.data(), bytes.size(), 0};
    while (out.pos == 0) {
      const std::string_view compressed = input_.ahead();
      if (compressed.empty() && !has_more_) {
        if (in_frame_ || is_first_) fail_damaged(input_.file(), "the zstd data ends in the middle");
        return 0;
      }
      ZSTD_inBuffer in{compressed.data(), compressed.size(), 0};
      is_first_ = false;
      const size_t left = ZSTD_decompressStream(stream_.get(), &out, &in);
      input_.take(in.pos);
      if (ZSTD_isError(left) != 0 &&
          std::string_view(ZSTD_getErrorName(left)).find("too much memory") != std::string_view::npos) {
        TORCH_CHECK_VALUE(false, input_.file(),
                          ": was compressed with a window of more than 128 MiB, which takes as much memory to read. "
                          "Compress it again without zstd's --long.");
      }
      if (ZSTD_isError(left) != 0) {
        fail_damaged(input_.file(), std::string("is not zstd data, or is damaged: ") + ZSTD_getErrorName(left));
      }
      in_frame_ = left != 0;
      has_more_ = in_frame_ && out.pos == out.size;  // it may hold output that did not fit
    }
    return out.pos;
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  CompressedBytes input_;
  std::unique_ptr<ZSTD_DStream, Free> stream_;
  bool in_frame_ = false;
  bool has_more_ = false;
  bool is_first_ = true;
};
#endif

std::string ending_of(const std::filesystem::path& file) { return ascii_lower(file.extension().string()); }

}  // namespace

bool is_compressed(const std::filesystem::path& file) {
  const std::string ending = ending_of(file);
  return ending == ".gz" || ending == ".zst";
}

std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& file) {
  if (!is_compressed(file)) return std::make_unique<FileBytes>(file);
  const bool is_gzip = ending_of(file) == ".gz";
#ifdef MEZZO_HAS_ZLIB
  if (is_gzip) return std::make_unique<GzipBytes>(file);
#endif
#ifdef MEZZO_HAS_ZSTD
  if (!is_gzip) return std::make_unique<ZstdBytes>(file);
#endif
  TORCH_CHECK_VALUE(false, file.string(), ": this build of mezzo has no ", is_gzip ? "zlib" : "zstd",
                    "; decompress the file first, or build mezzo where ", is_gzip ? "zlib1g-dev" : "libzstd-dev",
                    " is installed.");
}

}  // namespace mezzo::text
