// SPDX-License-Identifier: Apache-2.0
// A node's namespaces as the command line shows, finds and compares them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cistern/status.h"

namespace cistern {

struct ListedGroup {
  std::string name;
  std::string reach;
  std::uint64_t window_tokens = 0;
  std::vector<std::uint64_t> part_bytes;
};

struct ListedNamespace {
  std::string fingerprint;
  std::vector<std::string> names;
  std::vector<std::pair<std::string, std::string>> fields;  // by name
  std::vector<std::pair<std::string, std::string>> labels;  // likewise; of a node that knows none empty
  std::vector<ListedGroup> groups;
  std::uint64_t block_tokens = 0;
  bool trusted_keys = false;
  bool strict = false;
  std::string mesh;                      // "on" where nobody said
  std::string flash_write, flash_admit;  // "as the node" where nobody said
  std::uint64_t blocks = 0;
  std::uint64_t memory_records = 0, memory_bytes = 0, flash_records = 0, flash_bytes = 0;
  std::uint64_t uses = 0, owners = 0;
  std::optional<std::uint64_t> unused_us;

  // The first of its names, else its fingerprint.
  const std::string& title() const { return names.empty() ? fingerprint : names.front(); }
  // For a line of a table: its name, else what its label `model` says and how its fingerprint begins.
  std::string shown() const;
};

// "model=llama role=draft"; empty where it has none.
std::string LabelsText(const ListedNamespace& ns);

// What Store::NamespacesJson gives. kMismatch: it is something else.
Result<std::vector<ListedNamespace>> ParseNamespaces(std::string_view json);

// Those that `text` means: a name of theirs, the beginning of a fingerprint, or NAME=VALUE of a field or a
// label. kMiss: none; it lists those that there are.
Result<std::vector<const ListedNamespace*>> FindNamespaces(const std::vector<ListedNamespace>& all,
                                                           std::string_view text);
// The only one of them. kInvalid (several) lists those that it may be.
Result<const ListedNamespace*> FindNamespace(const std::vector<ListedNamespace>& all, std::string_view text);

struct NamespaceDifference {
  std::string what;  // "field dtype", "group full: part_bytes"
  std::string a, b;
  bool identity = true;  // two that differ in it share no blocks
};
std::vector<NamespaceDifference> Differences(const ListedNamespace& a, const ListedNamespace& b);

}  // namespace cistern
