"""Open plans: arenas, programs bound, slots, and the devices that they run on."""
