"""What differs between operating systems: everything else asks here. Imports nothing of ours."""
