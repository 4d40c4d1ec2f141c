// SPDX-License-Identifier: Apache-2.0
// A client that puts and reads on a thread of its own, and compares every byte.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "../real_node.h"

namespace cistern {

inline constexpr std::uint64_t kLoadChain = 8;  // blocks from a root on
inline constexpr std::size_t kLoadBytes = 256u << 10;

class Load {
 public:
  // Blocks numbered from `first` on, without an end.
  Load(const RealNode& node, std::uint64_t first);
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  // Until so many more puts have succeeded.
  void Await(std::uint64_t more);
  std::uint64_t puts() const { return puts_; }
  std::uint64_t hits() const { return hits_; }
  std::uint64_t wrong() const { return wrong_; }
  // What neither succeeded nor was refused as the API allows; empty: nothing.
  std::string failure() const;

 private:
  void Run(Store store);
  void Read(Store& store, const Namespace& ns, std::uint64_t number);
  void Fail(const std::string& what);

  const std::uint64_t first_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> puts_{0}, hits_{0}, wrong_{0};
  mutable std::mutex mutex_;
  std::string failure_;
  std::thread thread_;
};

}  // namespace cistern
