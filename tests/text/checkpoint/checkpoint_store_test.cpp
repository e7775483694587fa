#include "text/checkpoint/checkpoint_store.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/io/safetensors.h"
#include "text/checkpoint/checkpoint_format.h"
#include "text/io/content_hash.h"
#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

using ::testing::ElementsAre;
namespace fs = std::filesystem;

class CheckpointStoreTest : public ::testing::Test {
 protected:
  static Checkpoint make(int64_t step, float weight = 1) {
    Checkpoint checkpoint;
    checkpoint.run = "run";
    checkpoint.step = step;
    checkpoint.identity.flags["seed"] = "1";
    checkpoint.weights = {{"w", at::full({8}, weight)}};
    checkpoint.optimizer = {{"m", at::zeros({8})}};
    return checkpoint;
  }

  void save_best_model(Checkpoint& checkpoint, int64_t step, float weight) const {
    const auto hash = save_safetensors(model(), {{"w", at::full({8}, weight)}}, {{"format", "pt"}});
    checkpoint.best = BestModel{step, "accuracy", 0.5, 0.25, hash};
  }

  fs::path model() const { return folder_ / "model.safetensors"; }
  fs::path checkpoint(int64_t step) const { return checkpoint_format::path(checkpoints_, step); }

  void damage(int64_t step) const {
    const fs::path file = checkpoint(step) / "optimizer.safetensors";
    std::string contents = ScratchFolder::read(file);
    contents.back() ^= 1;
    std::ofstream(file, std::ios::binary) << contents;
  }

  std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (const auto& [step, path] : checkpoint_format::list(checkpoints_)) {
      steps.push_back(step);
    }
    return steps;
  }

  ScratchFolder folder_;
  fs::path checkpoints_ = folder_ / "checkpoints";
};

TEST_F(CheckpointStoreTest, ReadsBackWhatItSaved) {
  Checkpoint saved = make(3);
  saved.seconds = 1.0 / 3;
  saved.scaler = {{"scale", 65536.0}, {"growth_interval", int64_t{2000}}};
  saved.average = {{"w", at::full({8}, 3.0F)}};
  saved.best_adapter = {{"w", at::full({2}, 4.0F)}, {"b", at::ones({1})}};
  save_best_model(saved, 2, /*weight=*/5);
  CheckpointStore(checkpoints_, 2).save(saved, model());

  const Checkpoint read = load_checkpoint(checkpoint(3));
  EXPECT_EQ(checkpoint_format::state_text(read), checkpoint_format::state_text(saved));
  EXPECT_TRUE(read.scaler.at("scale").isFloatingPoint());
  EXPECT_TRUE(read.scaler.at("growth_interval").isIntegral(/*includeBool=*/false));
  EXPECT_TRUE(at::equal(read.weights.at(0).second, saved.weights.at(0).second));
  EXPECT_TRUE(at::equal(SafetensorsReader(read.best_weights).tensor("w"), at::full({8}, 5.0F)));
  for (const auto& file : checkpoint_format::kTensorFiles) {
    const std::map<std::string, at::Tensor> before((saved.*file.tensors).begin(), (saved.*file.tensors).end());
    ASSERT_EQ((read.*file.tensors).size(), before.size()) << file.name;
    for (const auto& [name, tensor] : read.*file.tensors) {
      EXPECT_TRUE(at::equal(tensor, before.at(name))) << file.name << " " << name;
    }
  }
}

TEST_F(CheckpointStoreTest, WritesNoFilesOfAveragesAndAdaptersWithoutAny) {
  CheckpointStore(checkpoints_, 2).save(make(3), model());
  for (const char* name : {"average.safetensors", "best_adapter.safetensors"}) {
    EXPECT_FALSE(fs::exists(checkpoint(3) / name)) << name;
  }
  EXPECT_TRUE(load_checkpoint(checkpoint(3)).average.empty());
}

TEST_F(CheckpointStoreTest, ChecksTheFileOfAverages) {
  Checkpoint saved = make(3);
  saved.average = {{"w", at::full({8}, 3.0F)}};
  CheckpointStore(checkpoints_, 2).save(saved, model());
  fs::remove(checkpoint(3) / "average.safetensors");
  EXPECT_THROW(load_checkpoint(checkpoint(3)), c10::ValueError);
}

TEST_F(CheckpointStoreTest, KeepsTheNewestThatAreIntact) {
  CheckpointStore store(checkpoints_, 2);
  for (int64_t step : {1, 2}) {
    store.save(make(step), model());
  }
  damage(2);
  CheckpointStore next(checkpoints_, 2);  // of the next process, which has to look
  next.save(make(3), model());
  EXPECT_THAT(steps(), ElementsAre(3, 2, 1));
  next.save(make(4), model());
  EXPECT_THAT(steps(), ElementsAre(4, 3));
}

TEST_F(CheckpointStoreTest, LeavesLaterCheckpointsBehind) {
  CheckpointStore store(checkpoints_, 3);
  for (int64_t step : {5, 10, 15}) {
    store.save(make(step), model());
  }
  store.save(make(7), model());
  EXPECT_THAT(steps(), ElementsAre(7, 5));
}

TEST_F(CheckpointStoreTest, ReplacesACheckpointOfTheSameStep) {
  CheckpointStore store(checkpoints_, 2);
  store.save(make(5, 1), model());
  store.save(make(5, 2), model());
  EXPECT_TRUE(at::equal(load_checkpoint(checkpoint(5)).weights.at(0).second, at::full({8}, 2.0F)));
  EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints_), {}), 1);
}

TEST_F(CheckpointStoreTest, FindsACheckpointWhoseReplacementWasCutShort) {
  CheckpointStore store(checkpoints_, 2);
  store.save(make(4, 1), model());
  store.save(make(5, 1), model());
  fs::rename(checkpoint(5), checkpoint_format::path_replaced(checkpoints_, 5));
  store.tidy();
  std::vector<std::string> problems;
  EXPECT_EQ(load_newest_checkpoint(checkpoints_, problems)->step, 5);
  store.save(make(5, 2), model());
  EXPECT_THAT(steps(), ElementsAre(5, 4));
  EXPECT_TRUE(at::equal(load_checkpoint(checkpoint(5)).weights.at(0).second, at::full({8}, 2.0F)));
}

TEST_F(CheckpointStoreTest, TidiesUpItsOwnLeftoversOnly) {
  CheckpointStore store(checkpoints_, 2);
  store.save(make(5), model());
  for (const char* name : {".step-6.tmp", ".step-5.replaced", "6"}) {
    fs::copy(checkpoint(5), checkpoints_ / name);
  }
  std::ofstream(checkpoints_ / ".step-6.tmp/.weights.safetensors.12.3.tmp") << "half";
  fs::create_directory(checkpoints_ / ".step-7.tmp");
  std::ofstream(checkpoints_ / ".step-7.tmp/notes") << "mine";
  store.tidy();
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(checkpoints_)) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("step-5", ".step-7.tmp", "6"));
}

TEST_F(CheckpointStoreTest, SharesTheBestWeightsAmongCheckpointsButNotWithTheModel) {
  CheckpointStore store(checkpoints_, 9);
  Checkpoint current = make(2, /*weight=*/5);
  save_best_model(current, 2, /*weight=*/5);
  const auto best = current.best;
  store.save(current, model());
  EXPECT_FALSE(fs::exists(checkpoint(2) / "best.safetensors")) << "the best weights are the checkpoint's own";
  current = make(4, /*weight=*/6);
  current.best = best;
  fs::remove(model());  // the copy is another's now
  store.save(current, model());
  EXPECT_TRUE(fs::equivalent(checkpoint(4) / "best.safetensors", checkpoint(2) / "weights.safetensors"));
  save_best_model(current, 5, /*weight=*/7);
  current.step = 6;
  store.save(current, model());
  EXPECT_EQ(hash_of_file(checkpoint(6) / "best.safetensors"), current.best->hash);
  EXPECT_FALSE(fs::equivalent(checkpoint(6) / "best.safetensors", model()));
  EXPECT_EQ(store.find_weights(best->hash), checkpoint(4) / "best.safetensors");
}

TEST_F(CheckpointStoreTest, LinksToNoDamagedCopyAndTakesTheModelInItsPlace) {
  CheckpointStore store(checkpoints_, 9);
  Checkpoint current = make(4, /*weight=*/6);
  save_best_model(current, 2, /*weight=*/5);
  store.save(current, model());
  const fs::path copy = checkpoint(4) / "best.safetensors";
  std::string contents = ScratchFolder::read(copy);
  contents.back() ^= 1;
  std::ofstream(copy, std::ios::binary) << contents;
  EXPECT_EQ(hash_of_file(load_checkpoint(checkpoint(4)).best_weights), current.best->hash);
  current.step = 6;
  store.save(current, model());
  EXPECT_EQ(hash_of_file(checkpoint(6) / "best.safetensors"), current.best->hash);
  fs::remove(model());
  EXPECT_NE(value_error([&] { load_checkpoint(checkpoint(4)); }, folder_).find("best.safetensors: is damaged"),
            std::string::npos);
}

TEST_F(CheckpointStoreTest, LeavesFilesOfOthersInItsWayAlone) {
  CheckpointStore store(checkpoints_, 2);
  store.save(make(5, 1), model());
  for (const char* name : {".step-5.tmp", ".step-5.replaced", ".step-6.tmp"}) {
    fs::create_directory(checkpoints_ / name);
    std::ofstream(checkpoints_ / name / "notes") << "mine";
  }
  store.save(make(5, 2), model());
  EXPECT_TRUE(at::equal(load_checkpoint(checkpoint(5)).weights.at(0).second, at::full({8}, 2.0F)));
  EXPECT_FALSE(fs::exists(checkpoint(5) / "notes"));
  Checkpoint unsaved = make(6);
  unsaved.best = BestModel{1, "accuracy", 0.5, 0.25, "of no file"};
  EXPECT_ANY_THROW(store.save(unsaved, model()));
  for (const char* name : {".step-5.tmp", ".step-5.replaced", ".step-6.tmp"}) {
    EXPECT_EQ(ScratchFolder::read(checkpoints_ / name / "notes"), "mine") << name;
  }
}

TEST_F(CheckpointStoreTest, ACheckpointThatIsBeingReplacedDoesNotCountBesideTheNewOne) {
  CheckpointStore store(checkpoints_, 3);
  store.save(make(4), model());
  store.save(make(5), model());
  fs::copy(checkpoint(5), checkpoints_ / ".step-5.replaced");
  store.save(make(6), model());
  EXPECT_THAT(steps(), ElementsAre(6, 5, 4));
}

TEST_F(CheckpointStoreTest, PassesOverALinkThatLeadsNowhere) {
  CheckpointStore store(checkpoints_, 2);
  store.save(make(5), model());
  fs::create_directory_symlink("step-9", checkpoints_ / "step-9");
  std::vector<std::string> problems;
  EXPECT_EQ(load_newest_checkpoint(checkpoints_, problems)->step, 5);
  EXPECT_EQ(problems.size(), 1U);
}

TEST_F(CheckpointStoreTest, ADamagedBestModelGetsIntoNoCheckpoint) {
  CheckpointStore store(checkpoints_, 2);
  Checkpoint checkpoint_of_four = make(4);
  save_best_model(checkpoint_of_four, 3, /*weight=*/5);
  std::ofstream(model()) << "damaged";
  EXPECT_EQ(value_error([&] { store.save(checkpoint_of_four, model()); }, folder_),
            "model.safetensors: is damaged: its hash is not the one noted when it was written");
  EXPECT_TRUE(fs::is_empty(checkpoints_)) << "nothing is left of the attempt";
}

TEST_F(CheckpointStoreTest, NamesTheFileAndTheDamage) {
  CheckpointStore(checkpoints_, 2).save(make(5), model());
  const auto error = [&] { return value_error([&] { load_checkpoint(checkpoint(5)); }, folder_); };
  damage(5);
  EXPECT_EQ(error(),
            "checkpoints/step-5/optimizer.safetensors: is damaged: its hash is not the one noted when the "
            "checkpoint was written");
  fs::remove(checkpoint(5) / "optimizer.safetensors");
  EXPECT_EQ(error(), "checkpoints/step-5/optimizer.safetensors: cannot be read: No such file or directory.");
}

TEST_F(CheckpointStoreTest, BelievesNoFolderThatIsNamedForAnotherStep) {
  CheckpointStore store(checkpoints_, 2);
  store.save(make(4), model());
  fs::copy(checkpoint(4), checkpoint(6));
  EXPECT_EQ(value_error([&] { load_checkpoint(checkpoint(6)); }, folder_),
            "checkpoints/step-6: is named for step 6 and holds step 4; rename it");
  std::vector<std::string> problems;
  EXPECT_EQ(load_newest_checkpoint(checkpoints_, problems)->step, 4);
  fs::rename(checkpoint(4), folder_ / "kept");  // a name that says nothing of a step
  EXPECT_EQ(load_checkpoint(folder_ / "kept").step, 4);
}

TEST_F(CheckpointStoreTest, NamesAFileThatWasCutOff) {
  CheckpointStore(checkpoints_, 2).save(make(5), model());
  const fs::path file = checkpoint(5) / "optimizer.safetensors";
  const auto bytes = fs::file_size(file);
  fs::resize_file(file, bytes - 1);
  EXPECT_EQ(value_error([&] { load_checkpoint(checkpoint(5)); }, folder_),
            fmt::format("checkpoints/step-5/optimizer.safetensors: is damaged: it has {} bytes, and had {} when the "
                        "checkpoint was written",
                        bytes - 1, bytes));
}

TEST_F(CheckpointStoreTest, ManifestTellsWhatWroteIt) {
  Checkpoint saved = make(5);
  saved.environment = {{"LibTorch", "2.13.0"}, {"instruction set", "avx2"}};
  CheckpointStore(checkpoints_, 2).save(saved, model());
  EXPECT_EQ(load_checkpoint(checkpoint(5)).environment, saved.environment);
  const auto manifest = nlohmann::json::parse(ScratchFolder::read(checkpoint(5) / "manifest.json"));
  for (const auto& [name, file] : manifest.at("files").items()) {
    EXPECT_EQ(file.at("bytes"), fs::file_size(checkpoint(5) / name)) << name;
    EXPECT_EQ(file.at("hash"), hash_of_file(checkpoint(5) / name)) << name;
  }
  EXPECT_EQ(manifest.at("files").size(), 3);
}

TEST_F(CheckpointStoreTest, NamesAManifestThatItDoesNotRead) {
  CheckpointStore(checkpoints_, 2).save(make(5), model());
  const fs::path file = checkpoint(5) / "manifest.json";
  const auto written = nlohmann::json::parse(ScratchFolder::read(file));
  const auto error_of = [&](const auto& change) {
    auto manifest = written;
    change(manifest);
    write_file_atomically(file, manifest.dump());
    return value_error([&] { load_checkpoint(checkpoint(5)); }, folder_);
  };
  EXPECT_EQ(error_of([](auto& manifest) { manifest["format"] = 99; }),
            "checkpoints/step-5/manifest.json: is of format 99, this mezzo reads format 6; resume with the version "
            "that wrote it");
  EXPECT_EQ(error_of([](auto& manifest) { manifest.erase("format"); }),
            "checkpoints/step-5/manifest.json: has no format number: an earlier mezzo wrote it; resume with that "
            "version, or start a new run");
  EXPECT_EQ(error_of([](auto& manifest) { manifest["files"].erase("weights.safetensors"); }),
            "checkpoints/step-5/manifest.json: has no entry for weights.safetensors");
  EXPECT_EQ(error_of([](auto& manifest) { manifest["files"]["state.json"]["bytes"] = -1; }),
            "checkpoints/step-5/manifest.json: \"bytes\" is -1, not a count from 0 to 9007199254740992");
  for (const char* key : {"files", "environment"}) {
    for (const nlohmann::json& wrong :
         {nlohmann::json(), nlohmann::json(1), nlohmann::json({1}), nlohmann::json("a")}) {
      EXPECT_THAT(error_of([&](auto& manifest) { manifest[key] = wrong; }),
                  ::testing::StartsWith("checkpoints/step-5/manifest.json: "))
          << key << wrong;
    }
  }
  EXPECT_EQ(error_of([](auto&) {}), "(nothing was thrown)");
}

}  // namespace
}  // namespace mezzo::text
