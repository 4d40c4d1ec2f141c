// SPDX-License-Identifier: Apache-2.0
#include "node_world.h"
#include "storm_program.h"

int main(int count, char** words) {
  using cistern::mesh::NodeWorld;
  return cistern::RunStorm<NodeWorld>(
      count, words, "node_storm",
      {{"hits", "blocks read", &NodeWorld::hits}, {"peer_blocks", "of others", &NodeWorld::peer_blocks}});
}
