// SPDX-License-Identifier: Apache-2.0
// What a member counts and says of its cell.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace cistern {
class MetricRegistry;
}  // namespace cistern

namespace cistern::mesh {

class LocalBlockStore;
class Member;
class RailThreads;
class Sharing;

struct CellParts {  // all borrowed; null, for the names alone
  const Member* member = nullptr;
  const LocalBlockStore* local = nullptr;
  const Sharing* sharing = nullptr;
  const RailThreads* rails = nullptr;
  // Names of namespaces that stand for another list in the cell, and why.
  const std::map<std::string, std::string>* conflicts = nullptr;
  std::int64_t certificate_ends = 0;  // as net::TlsContext::ends_at
};
void AddMetrics(MetricRegistry& registry, const CellParts& cell);
// How long what it reads from others takes, among the section `waits`.
void AddWaits(MetricRegistry& registry, const CellParts& cell);

}  // namespace cistern::mesh
