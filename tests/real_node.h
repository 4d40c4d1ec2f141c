// SPDX-License-Identifier: Apache-2.0
// A whole node on a thread of this process, with a socket, and what tests of its clients need. Blocks are
// those of a namespace with one full group and one part; what a block holds follows from its number.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/assert.h"
#include "base/format.h"
#include "base/random_bytes.h"
#include "base/test_directory.h"
#include "cistern/cistern.h"
#include "node/node.h"

namespace cistern {

inline BlockKey KeyOf(std::uint64_t number) {
  BlockKey key;
  key.length = 32;
  FillRandom(number, std::as_writable_bytes(std::span(key.bytes)));
  return key;
}

inline std::vector<std::byte> BodyOf(std::uint64_t number, std::size_t bytes) {
  std::vector<std::byte> body(bytes);
  FillRandom(~number, body);
  return body;
}

// Waits for the event; a watchdog ends a test that waits in vain.
inline void Until(const std::function<bool()>& so) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (!so()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "the watchdog barks";
    std::this_thread::yield();
  }
}

class RealNode {
 public:
  // `change` has the last word on the options.
  explicit RealNode(std::uint64_t memory_bytes = 128u << 20,
                    const std::function<void(node::NodeOptions&)>& change = {}) {
    options_.memory_dir = directory_.path() + "/memory";
    options_.memory_bytes = memory_bytes;
    options_.socket = directory_.path() + "/socket";
    options_.log_level = "error";
    if (change) change(options_);
    Start();
  }
  ~RealNode() { node_.reset(); }

  void Start() {
    Result<std::unique_ptr<node::Node>> node = node::Node::Start(options_);
    ASSERT_TRUE(node.has_value()) << node.error().ToString();
    node_ = std::move(*node);
  }
  void Stop() { node_.reset(); }
  // For the next start.
  void Configure(const std::function<void(node::NodeOptions&)>& change) { change(options_); }
  const node::NodeOptions& Options() const { return options_; }
  Result<node::Reloaded> Reload(const node::NodeOptions& read) { return node_->Reload(read); }
  const std::string& directory() const { return directory_.path(); }
  const std::string& socket() const { return options_.socket; }
  std::string http() const { return node_->http(); }

  ConnectOptions options(const OwnerToken& owner = {}) const {
    ConnectOptions options;
    options.socket = options_.socket;
    options.owner = owner;
    options.deadline_us = 60'000'000;
    return options;
  }
  Store Connect(const OwnerToken& owner = {}) const {
    Result<Store> store = Store::Connect(options(owner));
    CISTERN_ASSERT(store.has_value());
    return std::move(*store);
  }

 private:
  const TestDirectory directory_;
  node::NodeOptions options_;
  std::unique_ptr<node::Node> node_;
};

inline Namespace AttachTest(Store& store, const std::string& name = "test") {
  NamespaceSpec spec;
  spec.fields = {{"name", name}};
  spec.groups = {{.name = "all"}};
  Result<Namespace> ns = store.Attach(spec, 60'000'000);
  CISTERN_ASSERT(ns.has_value());
  return *ns;
}

inline Status PutBlock(Store& store, const Namespace& ns, std::uint64_t number,
                       std::optional<std::uint64_t> parent, std::size_t bytes) {
  std::optional<BlockKey> parent_key;
  if (parent) parent_key = KeyOf(*parent);
  return store.Put(ns, KeyOf(number), parent_key, BodyOf(number, bytes), {.deadline_us = 60'000'000});
}

// A number of the node's status, by its name. UINT64_MAX: the node did not answer.
inline std::uint64_t StatusNumber(Store& store, const std::string& name) {
  Result<std::string> json = store.StatusJson(60'000'000);
  if (!json) return UINT64_MAX;
  const std::size_t at = json->find("\"" + name + "\":");
  if (at == std::string::npos) {
    ADD_FAILURE() << "status has no " << name;
    return UINT64_MAX;
  }
  return std::strtoull(json->c_str() + at + name.size() + 3, nullptr, 10);
}

}  // namespace cistern
