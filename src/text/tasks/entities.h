// Entities as labels of words tell them: B- begins one, I- goes on, E- ends one, S- is one by itself, O is of none.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tasks/metrics.h"

namespace mezzo::text {

struct Entity {
  std::string_view type;
  int64_t begin = 0, end = 0;  ///< words, of which `end` is the first behind it

  bool operator==(const Entity&) const = default;
};

/// Whether it is O, or B-, I-, E- or S- and a type.
bool is_entity_label(std::string_view label);

/// Whether all are O, or B-, I-, E- or S- and a type, and one at least is not O.
bool are_entity_labels(std::span<const std::string> names);

/// The entities of a text. An entity goes on with I- and E- of its type alone; if these follow no such entity, they
/// begin a new one.
/// @param labels  of its words, as are_entity_labels(); empty ones are O.
/// @see get_entities of seqeval (Python), which follows the rules of CoNLL-2000's conlleval
std::vector<Entity> entities_of(std::span<const std::string_view> labels);

/// How well entities are found, by type: one is right where its type, begin and end are.
class EntityCounts {
 public:
  void add(std::span<const std::string_view> is, std::span<const std::string_view> predicted);
  ClassificationReport report() const;

 private:
  struct Counts {
    std::string type;
    int64_t is = 0, predicted = 0, hits = 0;
  };
  Counts& of(std::string_view type);

  std::vector<Counts> counts_;  // by type, ascending
};

}  // namespace mezzo::text
