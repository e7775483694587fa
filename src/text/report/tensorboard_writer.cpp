#include "mezzo/text/report/tensorboard_writer.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>

#include "text/io/append_file.h"
#include "text/io/protobuf.h"

// The file is a row of TFRecords, each an Event message (tensorboard/compat/proto/event.proto) in protobuf's wire
// format. A record is length (8 bytes), masked CRC-32C of the length (4), the message, masked CRC-32C of the message
// (4), little-endian.

namespace mezzo::text {
namespace {

constexpr const char* kWriter = "TensorBoardWriter";

// Field numbers of the messages.
constexpr uint32_t kEventWallTime = 1;
constexpr uint32_t kEventStep = 2;
constexpr uint32_t kEventFileVersion = 3;
constexpr uint32_t kEventSummary = 5;
constexpr uint32_t kEventSessionLog = 7;
constexpr uint32_t kSummaryValue = 1;
constexpr uint32_t kValueTag = 1;
constexpr uint32_t kValueSimpleValue = 2;
constexpr uint32_t kSessionLogStatus = 1;
constexpr int64_t kSessionLogStart = 1;

/// CRC-32C (Castagnoli), a byte at a time: records are some 60 bytes.
constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
    }
    table[byte] = crc;
  }
  return table;
}

/// The CRC as TFRecord stores it, masked so that a CRC over data with CRCs in it stays good.
uint32_t masked_crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_crc_table();
  uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc = kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF] ^ (crc >> 8);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

std::string framed_record(std::string_view message) {
  constexpr auto kAppend = [](std::string& out, auto value) { ProtobufWriter::append_little_endian(out, value); };
  std::string record;
  kAppend(record, uint64_t{message.size()});
  kAppend(record, masked_crc32c(record));
  record += message;
  kAppend(record, masked_crc32c(message));
  return record;
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string file_version_event(double wall_time) {
  ProtobufWriter event;
  event.float64(kEventWallTime, wall_time);
  event.string(kEventFileVersion, "brain.Event:2");
  return event.bytes();
}

std::string session_start_event(double wall_time, int64_t step) {
  ProtobufWriter session_log, event;
  session_log.integer(kSessionLogStatus, kSessionLogStart);
  event.float64(kEventWallTime, wall_time);
  event.integer(kEventStep, step);
  event.message(kEventSessionLog, session_log);
  return event.bytes();
}

std::string scalar_event(std::string_view tag, double value, int64_t step, double wall_time) {
  ProtobufWriter point, summary, event;
  point.string(kValueTag, tag);
  point.float32(kValueSimpleValue, static_cast<float>(value));
  summary.message(kSummaryValue, point);
  event.float64(kEventWallTime, wall_time);
  event.integer(kEventStep, step);
  event.message(kEventSummary, summary);
  return event.bytes();
}

/// TensorBoard reads a folder's files in the order of their names, hence the time first.
std::string file_name(double wall_time) {
  static std::atomic<int> files_made = 0;
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) {
    std::strcpy(host.data(), "localhost");
  }
  std::string time = std::to_string(static_cast<int64_t>(wall_time));
  time.insert(0, time.size() < 10 ? 10 - time.size() : 0, '0');
  return "events.out.tfevents." + time + "." + host.data() + "." + std::to_string(::getpid()) + "." +
         std::to_string(files_made++);
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder) : TensorBoardWriter(folder, Options()) {}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, const Options& options)
    : flush_every_(options.flush_every) {
  TORCH_CHECK_VALUE(flush_every_ > 0, kWriter, ": flush_every must be 1 or more, got ", flush_every_, ".");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK(!error, kWriter, ": cannot make the folder ", folder.string(), ": ", error.message());
  const double wall_time = now();
  file_ = std::make_unique<AppendFile>(kWriter, folder / file_name(wall_time), O_EXCL);
  file_->unwritten = framed_record(file_version_event(wall_time));
  if (options.purge_step) {
    file_->unwritten += framed_record(session_start_event(wall_time, *options.purge_step));
  }
  flush();
}

TensorBoardWriter::~TensorBoardWriter() {
  try {
    flush();
  } catch (const c10::Error& error) {
    TORCH_WARN("The last TensorBoard records are lost. ", error.what_without_backtrace());
  }
}

const std::filesystem::path& TensorBoardWriter::path() const { return file_->path(); }

void TensorBoardWriter::add_scalar(std::string_view tag, double value, int64_t step, std::optional<double> wall_time) {
  add_event(scalar_event(tag, value, step, wall_time ? *wall_time : now()));
}

void TensorBoardWriter::add_event(std::string_view event) {
  file_->unwritten += framed_record(event);
  if (++buffered_records_ >= flush_every_) {
    flush();
  }
}

void TensorBoardWriter::flush() {
  buffered_records_ = 0;
  file_->write();
}

}  // namespace mezzo::text
