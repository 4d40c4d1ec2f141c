// SPDX-License-Identifier: Apache-2.0
// What tests ask an HTTP port with: one request over one connection, and all that comes back.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace cistern::admin {

// Connected to "127.0.0.1:PORT".
inline Fd ConnectTo(const std::string& address) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::uint16_t port = 0;
  const std::size_t colon = address.rfind(':');
  std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
  to.sin_port = htons(port);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0) << address;
  return socket;
}

inline bool SendAll(const Fd& socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

// Until the other side has no more.
inline std::string ReceiveAll(const Fd& socket) {
  std::string all;
  char bytes[4096];
  for (ssize_t got = 0; (got = recv(socket.get(), bytes, sizeof(bytes), 0)) > 0;)
    all.append(bytes, static_cast<std::size_t>(got));
  return all;
}

struct HttpAnswered {
  int status = 0;
  std::string body;
};

inline HttpAnswered AnsweredWith(const std::string& all) {
  HttpAnswered answered;
  if (all.size() > 12) std::from_chars(all.data() + 9, all.data() + 12, answered.status);
  const std::size_t end = all.find("\r\n\r\n");
  if (end != std::string::npos) answered.body = all.substr(end + 4);
  return answered;
}

inline HttpAnswered Ask(const std::string& address, const std::string& bytes) {
  const Fd socket = ConnectTo(address);
  SendAll(socket, bytes);
  return AnsweredWith(ReceiveAll(socket));
}

inline HttpAnswered Get(const std::string& address, const std::string& path) {
  return Ask(address, "GET " + path + " HTTP/1.1\r\nHost: test\r\n\r\n");
}

}  // namespace cistern::admin
