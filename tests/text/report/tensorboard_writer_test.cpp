#include "mezzo/text/report/tensorboard_writer.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

// That TensorBoard itself reads the files is tests/python/text/test_tensorboard.py.

namespace mezzo::text {
namespace {

class TensorBoardWriterTest : public testing::Test {
 protected:
  ~TensorBoardWriterTest() override { std::filesystem::remove_all(folder_); }

  static std::string bytes_of(const std::filesystem::path& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
  }

  std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("tensorboard_" + std::to_string(::getpid())) / "nested";
};

std::string with_zeros(const char* text, size_t size) { return std::string(text, size); }

TEST_F(TensorBoardWriterTest, WritesTheBytesOfARecordThatTensorBoardWrote) {
  TensorBoardWriter writer(folder_);
  const auto before = bytes_of(writer.path()).size();
  writer.add_scalar("loss", 0.5, /*step=*/300, /*wall_time=*/2.0);
  // tensorboard.summary.writer.record_writer.RecordWriter, given
  // Event(wall_time=2, step=300, summary=...).
  const std::string expected = with_zeros(
      "\x1b\x00\x00\x00\x00\x00\x00\x00\x1a\x0d\x9e\x13"
      "\x09\x00\x00\x00\x00\x00\x00\x00\x40\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x00\x3f"
      "\xdf\xc5\x2b\x60",
      12 + 27 + 4);
  EXPECT_EQ(bytes_of(writer.path()).substr(before), expected);
}

TEST_F(TensorBoardWriterTest, OpensWithTheFileVersion) {
  TensorBoardWriter writer(folder_);
  EXPECT_NE(bytes_of(writer.path()).find("brain.Event:2"), std::string::npos);
  EXPECT_EQ(writer.path().filename().string().rfind("events.out.tfevents.", 0), 0u) << writer.path();
}

TEST_F(TensorBoardWriterTest, GathersRecordsUntilFlushEveryOrTheEnd) {
  std::filesystem::path path;
  size_t empty = 0;
  {
    TensorBoardWriter writer(folder_, {.flush_every = 3, .purge_step = std::nullopt});
    path = writer.path();
    empty = bytes_of(path).size();
    writer.add_scalar("a", 1, 1);
    writer.add_scalar("a", 2, 2);
    EXPECT_EQ(bytes_of(path).size(), empty);
    writer.add_scalar("a", 3, 3);
    EXPECT_GT(bytes_of(path).size(), empty);
    empty = bytes_of(path).size();
    writer.add_scalar("a", 4, 4);
    EXPECT_EQ(bytes_of(path).size(), empty);
  }
  EXPECT_GT(bytes_of(path).size(), empty);
}

TEST_F(TensorBoardWriterTest, GivesEveryWriterAFileOfItsOwn) {
  TensorBoardWriter first(folder_);
  TensorBoardWriter second(folder_);
  EXPECT_NE(first.path(), second.path());
}

TEST_F(TensorBoardWriterTest, SaysWhatIsWrongWithAFolderItCannotMake) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ / "file") << "in the way";
  try {
    TensorBoardWriter writer(folder_ / "file");
    FAIL() << "wrote into a file";
  } catch (const c10::Error& error) {
    EXPECT_EQ(error.msg().rfind("TensorBoardWriter: cannot make the folder ", 0), 0u) << error.msg();
  }
  EXPECT_THROW(TensorBoardWriter(folder_, {.flush_every = 0, .purge_step = std::nullopt}), c10::ValueError);
}

}  // namespace
}  // namespace mezzo::text
