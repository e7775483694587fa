#include "text/io/read_error.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "text/io/read_file.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;

class ReadErrorTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "data" / "emotion");
    for (const char* name : {"train.jsonl", "dev.jsonl"}) {
      std::ofstream(folder_ / "data" / "emotion" / name) << "{}";
    }
    fs::create_symlink("nowhere", folder_ / "link");
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string meant(const fs::path& path) const { return did_you_mean_file(folder_ / path); }
  std::string asks(const fs::path& path) const { return " Did you mean '" + (folder_ / path).string() + "'?"; }

  const fs::path folder_ = fs::path(testing::TempDir()) / ("mezzo_read_error_test" + std::to_string(getpid()));
};

TEST_F(ReadErrorTest, NamesTheFileBesideTheFirstPartThatIsMissing) {
  EXPECT_EQ(meant("data/emotion/dev.jsnol"), asks("data/emotion/dev.jsonl"));
  EXPECT_EQ(meant("data/emotion/Train.jsonl"), asks("data/emotion/train.jsonl"));
  EXPECT_EQ(meant("data/emotions/dev.jsonl"), asks("data/emotion"));
  EXPECT_EQ(meant("date"), asks("data"));
}

TEST_F(ReadErrorTest, NamesNothingThatIsFarOrThereIsNothingToName) {
  EXPECT_EQ(meant("data/emotion/test.csv"), "");
  EXPECT_EQ(meant("data/emotion/dev.jsonl/more"), "");  // no folder to look into
  EXPECT_EQ(meant("data/emotion/dev.jsonl"), "");       // it is there
  EXPECT_EQ(meant("link"), "");                         // so is a link, whose target is not
  EXPECT_EQ(did_you_mean_file(""), "");
}

TEST_F(ReadErrorTest, AFileThatIsNotThereIsReportedWithIt) {
  const auto error = [](const fs::path& path) {
    try {
      read_file(path, 1 << 10);
    } catch (const c10::ValueError& e) {
      return std::string(e.what_without_backtrace());
    }
    return std::string();
  };
  const fs::path folder = folder_ / "data/emotion";
  EXPECT_EQ(error(folder / "dev.jsonk"), (folder / "dev.jsonk").string() +
                                             ": cannot be read: No such file or directory." +
                                             asks("data/emotion/dev.jsonl"));
  EXPECT_EQ(error(folder), folder.string() + ": cannot be read: Is a directory.");
}

}  // namespace
}  // namespace mezzo::text
