#include "text/tasks/entities.h"

#include <algorithm>

namespace mezzo::text {
namespace {

struct Tag {
  char place = 'O';
  std::string_view type;
};

Tag tag_of(std::string_view label) { return label.size() > 2 ? Tag{label[0], label.substr(2)} : Tag(); }

/// Whether `tag` is of the entity that the word before it is of.
bool goes_on(const Tag& before, const Tag& tag) {
  const bool is_open = before.place == 'B' || before.place == 'I';
  return is_open && (tag.place == 'I' || tag.place == 'E') && before.type == tag.type;
}

}  // namespace

bool is_entity_label(std::string_view label) {
  const bool has_type = label.size() > 2 && label[1] == '-';
  return label == "O" || (has_type && std::string_view("BIES").find(label[0]) != std::string_view::npos);
}

bool are_entity_labels(std::span<const std::string> names) {
  return std::ranges::all_of(names, is_entity_label) &&
         std::ranges::any_of(names, [](const std::string& name) { return name != "O"; });
}

std::vector<Entity> entities_of(std::span<const std::string_view> labels) {
  std::vector<Entity> entities;
  Tag before;
  for (size_t i = 0; i < labels.size(); ++i) {
    const Tag tag = tag_of(labels[i]);
    const auto word = static_cast<int64_t>(i);
    if (goes_on(before, tag)) {
      entities.back().end = word + 1;
    } else if (tag.place != 'O') {
      entities.push_back({tag.type, word, word + 1});
    }
    before = tag;
  }
  return entities;
}

EntityCounts::Counts& EntityCounts::of(std::string_view type) {
  const auto place = std::ranges::lower_bound(counts_, type, {}, &Counts::type);
  if (place != counts_.end() && place->type == type) return *place;
  return *counts_.insert(place, {.type = std::string(type)});
}

void EntityCounts::add(std::span<const std::string_view> is, std::span<const std::string_view> predicted) {
  const auto there = entities_of(is), found = entities_of(predicted);
  auto next = there.begin();  // both ascend
  for (const Entity& entity : found) {
    Counts& counts = of(entity.type);
    ++counts.predicted;
    while (next != there.end() && next->begin < entity.begin) ++next;
    counts.hits += next != there.end() && *next == entity;
  }
  for (const Entity& entity : there) ++of(entity.type).is;
}

ClassificationReport EntityCounts::report() const {
  std::vector<int64_t> is, predicted, hits;
  std::vector<std::string> names;
  for (const Counts& counts : counts_) {
    is.push_back(counts.is);
    predicted.push_back(counts.predicted);
    hits.push_back(counts.hits);
    names.push_back(counts.type);
  }
  return found_report(is, predicted, hits, std::move(names));
}

}  // namespace mezzo::text
