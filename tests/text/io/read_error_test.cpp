#include "text/io/read_error.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
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

TEST_F(ReadErrorTest, OnlyAFileMakesAFolderAnAdapter) {
  const auto error = [](const fs::path& folder) -> std::string {
    try {
      refuse_adapter(folder);
    } catch (const c10::ValueError& e) {
      return e.what_without_backtrace();
    }
    return "";
  };
  const fs::path folder = folder_ / "adapter", config = folder / "adapter_config.json", run = folder_ / "run.json";
  const std::string itself = folder.string() + ": holds a LoRA adapter (adapter_config.json), not a whole model. ";
  const std::string merge = "In Python, peft's merge_and_unload() and save_pretrained() make a whole model of it.";
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_EQ(error(folder_ / "loop"),
            (folder_ / "loop").string() + ": cannot be read: Too many levels of symbolic links.");
  fs::create_directories(config);
  EXPECT_EQ(error(folder), "");
  EXPECT_EQ(error(folder_ / "data"), "");
  EXPECT_EQ(error(folder_ / "none"), "");
  fs::remove(config);
  std::ofstream(config) << "{}";
  EXPECT_EQ(error(folder), itself + merge);
  // The parent may be another model, which does not hold this adapter's training.
  std::ofstream(folder_ / "config.json") << "{}";
  EXPECT_EQ(error(folder), itself + merge);
  std::ofstream(run) << R"({"settings": {"lora": "0"}})";
  EXPECT_EQ(error(folder), itself + merge);
  std::ofstream(run) << R"({"settings": {"lora": "8"}})";
  EXPECT_EQ(error(folder), itself + "Name " + (folder_ / "").string() + ", which holds the merged model.");
  fs::rename(folder, folder_ / "other");
  EXPECT_THAT(error(folder_ / "other"), testing::EndsWith(merge));
}

}  // namespace
}  // namespace mezzo::text
