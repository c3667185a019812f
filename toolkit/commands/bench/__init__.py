"""`toolkit bench`: how long the port takes beside another implementation, in turn on the same machine.

Each side is a process of its own that is asked for one measurement at a time while the other waits, so that what slows
the machine down slows both. A ratio is said with its interval, and no difference is spoken of that lies within it.
"""
