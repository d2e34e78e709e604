"""Reading a job and acting on it: find it, judge its status, follow, list, stop and debug it. Reading changes nothing."""
